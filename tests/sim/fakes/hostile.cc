#include "tests/sim/fakes/hostile.h"

#include <iterator>
#include <type_traits>
#include <utility>

#include "tests/sim/fakes/clients.h"

namespace memtide::sim {
namespace {

template <typename T, typename = void>
struct NamesChunks : std::false_type {};
template <typename T>
struct NamesChunks<T, std::void_t<decltype(T::chunks)>> : std::true_type {};

template <typename T, typename = void>
struct NamesTier : std::false_type {};
template <typename T>
struct NamesTier<T, std::void_t<decltype(T::tier)>> : std::true_type {};

// An id that the session must not use: never given, ended, or another job's.
ChunkId BadChunk(const State& state, SessionId session, Random* random) {
  std::vector<ChunkId> bad = {ChunkId(0), ChunkId(UINT64_MAX), ChunkId(random->Next()),
                              ChunkId(random->Below(20)), ChunkId(uint64_t{1} << 32 | 999)};
  for (const ChunkId chunk : state.ended_chunks) bad.push_back(chunk);
  for (const auto& [chunk, owner] : state.chunks) {
    if (!state.Owns(session, chunk)) bad.push_back(chunk);
    // The same place in the table, another generation.
    bad.push_back(ChunkId(chunk.value() + (uint64_t{1} << 32)));
  }
  return bad[random->Below(static_cast<uint32_t>(bad.size()))];
}

void SpoilBatch(const State& state, SessionId session, std::vector<ChunkId>* chunks,
                Random* random) {
  switch (random->Below(6)) {
    case 5:
      // Own ones, leased or not.
      *chunks = PickChunks(state, session, 4, random);
      break;
    case 0:
      chunks->clear();
      break;
    case 1:
      if (!chunks->empty()) chunks->push_back(chunks->front());
      break;
    case 2:
      chunks->insert(chunks->begin(), BadChunk(state, session, random));
      break;
    case 3:
      chunks->push_back(BadChunk(state, session, random));
      break;
    case 4:
      chunks->resize(state.config.limits.chunks_per_call + 1, BadChunk(state, session, random));
      break;
  }
}

// A session that may not call, or another one than meant.
SessionId WrongSession(const State& state, Random* random) {
  if (random->Percent(30) || state.sessions.empty()) return SessionId(random->Next());
  auto found = state.sessions.begin();
  std::advance(found, random->Below(static_cast<uint32_t>(state.sessions.size())));
  return found->first;
}

Event HostileOpen(const State& state, SessionId session, Random* random) {
  OpenCall open = MakeOpen(state, session, random);
  if (state.config.devices > 1 && random->Percent(15)) {
    open.device = random->Percent(50) ? state.config.devices : ~random->Below(3);
    return open;
  }
  switch (random->Below(9)) {
    case 8:
      open.device_memory = MemoryKind::kSharedMemory;
      break;
    case 0:
      open.chunk_size = Bytes(random->Percent(50) ? 0 : UINT64_MAX);
      break;
    case 1:
      open.chunk_size += Bytes(1);
      break;
    case 2:
      open.chunk_size = kMaxChunkSize + MiB(2);
      break;
    case 3:
      open.device_share = Bytes(UINT64_MAX);
      break;
    case 4:
      open.host_share = Bytes(UINT64_MAX - random->Below(3));
      break;
    case 5:
      open.ssd_share = Bytes(1);
      break;
    case 6:
      open.job_name = std::string(129 + random->Below(1000), 'x');
      break;
    case 7:
      open.time_to_live = random->Percent(50)     ? Duration(-1)
                          : open.job_name.empty() ? std::chrono::seconds(1)
                                                  : Duration::max();
      break;
  }
  return open;
}

void SpoilFetch(const State& state, FetchCall* fetch, Random* random) {
  switch (random->Below(5)) {
    case 0:
      fetch->tier = Tier::kSsd;
      break;
    case 1:
      fetch->deadline = random->Percent(50) ? Duration(1) : Duration::max();
      break;
    case 2:
      fetch->releases = fetch->chunks;
      fetch->releases.push_back(BadChunk(state, fetch->session, random));
      break;
    case 3:
      fetch->tier = state.config.device_slots == 0 ? Tier::kDevice : Tier::kHost;
      break;
    case 4:
      fetch->chunks = PickChunks(state, fetch->session, 100, random);
      fetch->wait = random->Percent(50);
      break;
  }
}

void SpoilMoments(const State& state, std::vector<MomentReport>* moments, Random* random) {
  if (random->Percent(50)) {
    moments->resize(state.config.limits.moments_per_call + 1);
  } else {
    moments->resize(1 + random->Below(12));
    for (MomentReport& moment : *moments) moment.ends_iteration = random->Percent(50);
    moments->front().name = std::string(100000, 'n');
    moments->front().uses.resize(state.config.limits.uses_per_call + random->Below(2));
  }
}

void SpoilResize(ResizeCall* resize, Random* random) {
  switch (random->Below(4)) {
    case 0:
      resize->device_share = Bytes(random->Percent(50) ? 0 : UINT64_MAX);
      break;
    case 1:
      resize->device_share = kMaxChunkSize * random->Below(4);
      break;
    case 2:
      resize->deadline = random->Percent(50) ? Duration(-1) : Duration::max();
      break;
    case 3:
      break;  // As it is: the job may not be one that can be resized.
  }
}

Event HostileReturn(const State& state, SessionId session, Random* random) {
  ReturnRegionsCall call;
  call.session = random->Percent(20) ? WrongSession(state, random) : session;
  // Whatever there may be, of whatever job.
  for (uint32_t region = 0; region < 40; ++region) call.regions.emplace_back(random->Below(60));
  if (random->Percent(20)) call.regions.assign(state.config.limits.device_regions + 1, RegionId(1));
  return call;
}

// The number of a part that a client computes, of whatever session; or any other.
uint64_t PartNumber(const State& state, Random* random) {
  if (random->Percent(10)) return random->Next();
  if (state.parts.empty() || random->Percent(20)) return random->Below(6);
  auto part = state.parts.begin();
  std::advance(part, random->Below(static_cast<uint32_t>(state.parts.size())));
  return part->first.second;
}

// A part that cannot be, or the end of one that is another session's or the daemon's, waits, or was
// never there.
std::optional<Event> HostilePart(const State& state, SessionId session, Random* random) {
  if (random->Percent(50)) {
    EndPartCall end;
    end.session = random->Percent(30) ? WrongSession(state, random) : session;
    end.part = random->Percent(30) ? 0 : PartNumber(state, random);
    end.computed = random->Percent(70);
    end.non_finite_gradients = random->Below(3);
    return end;
  }
  std::optional<Event> call = MakeCall(state, OpKind::kPart, session, 0, random);
  if (!call) return std::nullopt;
  auto& part = std::get<StepCall>(*call);
  switch (random->Below(5)) {
    case 0:
      part.part = 0;
      break;
    case 1:
      part.part = PartNumber(state, random);  // The session may have it.
      break;
    case 2:
      part.reads = random->Percent(50) ? static_cast<uint32_t>(part.chunks.size()) + 1 : UINT32_MAX;
      break;
    case 3:
      SpoilBatch(state, session, &part.chunks, random);
      break;
    case 4:
      part.session = WrongSession(state, random);
      break;
  }
  return call;
}

}  // namespace

std::optional<Event> MakeHostileCall(const State& state, SessionId session, uint64_t request_id,
                                     Random* random) {
  if (random->Percent(10)) return HostileOpen(state, session, random);
  if (random->Percent(4)) return HostileReturn(state, session, random);
  if (state.config.parts && random->Percent(25)) return HostilePart(state, session, random);
  constexpr OpKind kKinds[] = {
      OpKind::kAllocate, OpKind::kFetch,    OpKind::kFetch, OpKind::kRelease, OpKind::kEvict,
      OpKind::kFree,     OpKind::kDescribe, OpKind::kFetch, OpKind::kResize,  OpKind::kReport};
  std::optional<Event> call = MakeCall(state, kKinds[random->Below(std::size(kKinds))], session,
                                       random->Percent(5) ? 0 : request_id, random);
  if (state.config.activations && random->Percent(15)) {
    call = MakeCall(state, OpKind::kDiscard, session, request_id, random);
  }
  if (!call) return std::nullopt;
  const uint32_t spoil = random->Below(10);
  std::visit(
      [&](auto& e) {
        using Kind = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<Kind, AllocateCall>) {
          if (state.config.activations && random->Percent(50)) {
            e.home = static_cast<Tier>(random->Below(kTiers));
            return;
          }
          e.count = random->Percent(50) ? 0 : UINT32_MAX - random->Below(2);
        } else if constexpr (std::is_same_v<Kind, FetchCall>) {
          if (spoil < 5) SpoilFetch(state, &e, random);
          if (spoil == 5) SpoilMoments(state, &e.moments, random);
        } else if constexpr (std::is_same_v<Kind, ReportCall>) {
          if (spoil < 5) SpoilMoments(state, &e.moments, random);
          if (spoil == 9) e.session = WrongSession(state, random);
        } else if constexpr (std::is_same_v<Kind, ResizeCall>) {
          SpoilResize(&e, random);
          if (spoil == 9) e.session = WrongSession(state, random);
        } else if constexpr (NamesTier<Kind>::value) {
          if (spoil < 3) e.tier = static_cast<Tier>(random->Below(kTiers));
        }
        if constexpr (NamesChunks<Kind>::value) {
          if (spoil >= 3) SpoilBatch(state, session, &e.chunks, random);
          // Named by somebody who may not.
          if (spoil == 9) e.session = WrongSession(state, random);
        }
      },
      *call);
  return call;
}

std::optional<Event> MakeReplay(const State& state, SessionId session, Random* random) {
  const auto& remembered = state.FindSession(session)->remembered;
  if (remembered.empty() || !state.IsOpen(session)) return std::nullopt;
  return remembered[random->Below(static_cast<uint32_t>(remembered.size()))].event;
}

}  // namespace memtide::sim

// What the ranks do.
#include <algorithm>

#include "tests/sim/ranks/rank_simulation.h"

namespace memtide::sim {
namespace {

// By their place in RankConfig::weights.
enum Operation : uint32_t {
  kComplete,
  kTick,
  kConnect,
  kFetch,
  kWrite,
  kRelease,
  kPart,
  kEndPart,
  kCommit,
  kEvict,
  kPrefetch,
  kFree,
  kDiscard,
  kDie,
  kClose,
  kHang,
  kHostile,
  kRestart,
};

constexpr size_t kChunksOfParameter = 3;  // Gradient, parameter, shadow.

}  // namespace

void RankSimulation::Step() {
  uint32_t total = 0;
  for (const uint32_t weight : config_.weights) total += weight;
  uint32_t at = random_.Below(total), operation = 0;
  while (at >= config_.weights[operation]) at -= config_.weights[operation++];
  if (operation == kComplete) {
    if (node_.work().empty()) return;
    const size_t index = random_.Below(static_cast<uint32_t>(node_.work().size()));
    return Feed(node_.Complete(index, absl::OkStatus()));
  }
  if (operation == kTick) return PassTime(std::chrono::milliseconds(random_.Between(1, 100)));
  if (operation == kConnect) return Connect();
  if (operation == kRestart) return Restart();
  std::vector<SessionId> ids;
  for (const auto& [id, rank] : ranks_) {
    if (rank.open && !rank.hung) ids.push_back(id);
  }
  if (ids.empty()) return;
  StepRank(Find(ids[random_.Below(static_cast<uint32_t>(ids.size()))]), operation);
}

void RankSimulation::StepRank(Rank* rank, uint32_t operation) {
  if (rank->chunks.empty()) {
    if (rank->allocating) return;
    rank->allocating = true;
    const uint32_t count = config_.parameters * kChunksOfParameter;
    return Ask(AllocateCall{CallId(), rank->session, next_request_++, count});
  }
  switch (operation) {
    case kFetch:
      return Fetch(rank);
    case kWrite:
      return Write(rank);
    case kRelease:
      return Release(rank);
    case kPart:
      return AskPart(rank);
    case kEndPart:
      return EndPart(rank);
    case kCommit:
      return Commit(rank);
    case kEvict:
    case kPrefetch:
      return Move(rank, operation == kEvict);
    case kFree:
      return Free(rank);
    case kDiscard:
      return Discard(rank);
    case kDie:
      return Die(rank);
    case kClose:
      return Ask(CloseCall{CallId(), rank->session});
    case kHang:
      Hit(RankProbe::kHung);
      rank->hung = true;
      return;
    default:
      return Hostile(rank);
  }
}

void RankSimulation::Connect() {
  std::set<uint32_t> there;
  for (const auto& [id, rank] : ranks_) there.insert(rank.number);
  uint32_t number = 0;
  while (there.count(number) != 0) ++number;
  if (number >= config_.ranks) return;
  const SessionId session(next_session_++);
  Rank& rank = ranks_[session];
  rank.session = session;
  rank.number = number;
  rank.renewed = now_;
  Feed(ClientConnected{session, 1000, 1});
  OpenCall open;
  open.session = session;
  open.job_name = "training";
  open.rank = number;
  open.ranks = config_.ranks;
  open.chunk_size = MiB(2);
  if (config_.keeps) open.time_to_live = kTimeToLive;
  Ask(open);
}

ChunkId RankSimulation::AnyChunk(const Rank& rank) {
  return rank.chunks[random_.Below(static_cast<uint32_t>(rank.chunks.size()))];
}

ChunkId RankSimulation::AnyChunkOfOthers() {
  std::vector<ChunkId> all;
  for (const auto& [id, rank] : ranks_) {
    all.insert(all.end(), rank.chunks.begin(), rank.chunks.end());
  }
  return all[random_.Below(static_cast<uint32_t>(all.size()))];
}

bool RankSimulation::WaitsForPart(const Rank& rank) const {
  return std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
    const auto* step = std::get_if<StepCall>(&entry.second.event);
    return step != nullptr && step->session == rank.session;
  });
}

// A part of the rank that waits names the chunk: what it holds must stay as the digest says.
bool RankSimulation::IsBusy(const Rank& rank, ChunkId chunk) const {
  return std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
    const auto* step = std::get_if<StepCall>(&entry.second.event);
    return step != nullptr && step->session == rank.session &&
           std::count(step->chunks.begin(), step->chunks.end(), chunk) != 0;
  });
}

void RankSimulation::Fetch(Rank* rank) {
  FetchCall fetch;
  fetch.session = rank->session;
  fetch.tier = config_.device_slots != 0 && random_.Percent(40) ? Tier::kDevice : Tier::kHost;
  fetch.access = random_.Percent(50) ? Access::kWrite : Access::kRead;
  fetch.chunks = {AnyChunk(*rank)};
  const ChunkId second = AnyChunk(*rank);
  if (random_.Percent(30) && second != fetch.chunks[0]) fetch.chunks.push_back(second);
  fetch.wait = !random_.Percent(10);
  if (random_.Percent(20)) {
    const ChunkId released = AnyChunk(*rank);
    if (rank->leases.erase(released) != 0) fetch.releases = {released};
  }
  Ask(fetch);
}

// Ranks fill their chunks alike, mostly: by the step and the number of the chunk.
void RankSimulation::Write(Rank* rank) {
  std::vector<ChunkId> writable;
  for (const auto& [chunk, lease] : rank->leases) {
    if (lease.access == Access::kWrite && !IsBusy(*rank, chunk)) writable.push_back(chunk);
  }
  if (writable.empty()) return;
  const ChunkId chunk = writable[random_.Below(static_cast<uint32_t>(writable.size()))];
  const size_t number = static_cast<size_t>(
      std::find(rank->chunks.begin(), rank->chunks.end(), chunk) - rank->chunks.begin());
  const bool alike = random_.Percent(config_.alike_percent);
  const Stamp stamp = alike ? (rank->step + 1) * 1000 + number : 1'000'000 + next_stamp_++;
  node_.Write(rank->leases.at(chunk).place, stamp);
  rank->contents[chunk] = {stamp};
  if (random_.Percent(70)) Release(rank);
}

std::optional<Event> RankSimulation::GiveBack(Rank* rank, const std::vector<ChunkId>& chunks) {
  ReleaseCall release;
  release.session = rank->session;
  release.request_id = next_request_++;
  for (const auto& [chunk, lease] : rank->leases) {
    const bool named =
        chunks.empty() || std::find(chunks.begin(), chunks.end(), chunk) != chunks.end();
    if (named) release.chunks.push_back(chunk);
  }
  if (release.chunks.empty()) return std::nullopt;
  for (const ChunkId chunk : release.chunks) rank->leases.erase(chunk);
  return release;
}

void RankSimulation::Release(Rank* rank) {
  std::vector<ChunkId> some;
  if (!rank->leases.empty() && random_.Percent(30)) some = {rank->leases.begin()->first};
  if (std::optional<Event> release = GiveBack(rank, some)) Ask(*std::move(release));
}

void RankSimulation::AskPart(Rank* rank) {
  if (WaitsForCommit(rank->session)) return;
  StepCall call;
  call.session = rank->session;
  const uint32_t first = random_.Below(config_.parameters);
  const uint32_t count = 1 + (first + 1 < config_.parameters && random_.Percent(20));
  for (const size_t of : {0, 1, 2}) {
    for (uint32_t i = first; i < first + count; ++i) {
      call.chunks.push_back(rank->chunks[i * kChunksOfParameter + of]);
    }
  }
  call.reads = 2 * count;
  for (const ChunkId chunk : call.chunks) {
    if (IsBusy(*rank, chunk) || rank->contents.count(chunk) == 0) return;
    for (const auto& [id, waiting] : calls_) {
      const auto* fetch = std::get_if<FetchCall>(&waiting.event);
      if (fetch == nullptr || fetch->session != rank->session) continue;
      if (std::count(fetch->chunks.begin(), fetch->chunks.end(), chunk) != 0) return;
    }
  }
  // What reads as anything has no digest.
  for (uint32_t i = 0; i < call.reads; ++i) {
    const Content& content = rank->contents.at(call.chunks[i]);
    if (!content.defined || content.torn) return;
  }
  call.part = 1 + random_.Below(4);
  if (random_.Percent(30)) call.deadline = config_.limits.max_wait / 2;
  if (!random_.Percent(8)) {
    // The elements, and the step with the options, which ranks do not agree about at times.
    call.contents = PartContents{{first + 1, rank->step + 1 + 100 * random_.Percent(5)}, {}};
    call.contents->work.low = call.contents->work.low * 8 + count;
    for (uint32_t i = 0; i < call.reads; ++i) {
      const bool known = random_.Percent(90);
      const Stamp stamp = rank->contents.at(call.chunks[i]).stamp;
      call.contents->reads.push_back(known ? Digest{1, stamp + 1} : Digest());
    }
  }
  for (uint32_t i = call.reads; i < call.chunks.size(); ++i) {
    rank->contents[call.chunks[i]] = {kZeros, /*defined=*/false};
  }
  Ask(call);
}

void RankSimulation::EndPart(Rank* rank, uint64_t number, bool computed) {
  if (computed) node_.ComputePart({rank->session, number});
  const auto found = held_.find({rank->session, number});
  if (found != held_.end()) {
    const Held held = found->second;
    held_.erase(found);
    node_.EndPart({rank->session, number});
    const uint64_t made = next_made_++;
    // What was computed twice is of one maker or the other: the oracle knows not which.
    if (computed && !made_.insert({{held.work, held.read}, made}).second) {
      made_[{held.work, held.read}] = 0;
    }
    for (size_t i = 0; i < held.writes.size(); ++i) {
      if (computed) {
        SetResult(rank, held.writes[i], StepResult(held.read, held.work, i),
                  held.shareable ? made : 0);
      } else if (rank->contents.count(held.writes[i]) != 0) {
        rank->contents[held.writes[i]] = {kZeros, /*defined=*/false};
      }
    }
  }
  Ask(EndPartCall{CallId(), rank->session, number, computed, 0});
}

void RankSimulation::EndPart(Rank* rank) {
  std::vector<uint64_t> numbers;
  for (const auto& [part, held] : held_) {
    if (part.first == rank->session) numbers.push_back(part.second);
  }
  if (numbers.empty()) {
    if (random_.Percent(5)) EndPart(rank, 1 + random_.Below(4), random_.Percent(50));
    return;
  }
  const uint64_t number = numbers[random_.Below(static_cast<uint32_t>(numbers.size()))];
  const SessionId id = rank->session;
  EndPart(rank, number, !random_.Percent(config_.uncomputed_percent));
  if (random_.Percent(10) && verdict_.ok() && Find(id) != nullptr) {
    EndPart(Find(id), number, random_.Percent(50));
  }
}

void RankSimulation::Commit(Rank* rank) {
  if (WaitsForPart(*rank)) return;
  if (WaitsForCommit(rank->session) && !random_.Percent(10)) return;
  CommitCall call;
  call.session = rank->session;
  call.step = rank->step + 1;
  if (random_.Percent(5)) call.step = rank->step + random_.Below(3);
  for (uint32_t i = 0; i < config_.parameters; ++i) {
    const ChunkId chunk = rank->chunks[i * kChunksOfParameter + 1];
    const ChunkId shadow = rank->chunks[i * kChunksOfParameter + 2];
    if (rank->contents.count(chunk) == 0 || rank->contents.count(shadow) == 0) continue;
    if (!rank->contents[shadow].defined || random_.Percent(3)) continue;
    call.chunks.push_back(chunk);
    call.shadows.push_back(shadow);
  }
  call.with_all_ranks = config_.keeps && !random_.Percent(10);
  if (call.chunks.empty() && !call.with_all_ranks && !random_.Percent(5)) return;
  call.keep_old_content = random_.Percent(10);
  Ask(call);
}

void RankSimulation::Move(Rank* rank, bool evict) {
  const ChunkId chunk = AnyChunk(*rank);
  if (!evict) {
    const Tier tier =
        config_.device_slots != 0 && random_.Percent(50) ? Tier::kDevice : Tier::kHost;
    return Ask(PrefetchCall{CallId(), rank->session, tier, {chunk}});
  }
  rank->leases.erase(chunk);
  const Tier tier = config_.ssd_slots != 0 && random_.Percent(70) ? Tier::kSsd : Tier::kHost;
  Ask(EvictCall{CallId(), rank->session, tier, {chunk}});
}

void RankSimulation::Free(Rank* rank) {
  const ChunkId chunk = AnyChunk(*rank);
  Ask(FreeCall{CallId(), rank->session, next_request_++, {chunk}});
}

void RankSimulation::Discard(Rank* rank) {
  const ChunkId chunk = AnyChunk(*rank);
  if (IsBusy(*rank, chunk) || WaitsForCommit(rank->session)) return;
  Ask(DiscardCall{CallId(), rank->session, next_request_++, {chunk}});
}

void RankSimulation::Die(Rank* rank) {
  const SessionId id = rank->session;
  for (const auto& [part, held] : held_) {
    if (part.first != id) continue;
    Hit(RankProbe::kDiedInPart);
    if (random_.Percent(50)) node_.ComputePart(part);
  }
  for (const auto& [chunk, lease] : rank->leases) {
    if (lease.access == Access::kWrite) node_.Write(lease.place, node_.NewPoison());
  }
  Feed(ClientGone{id});
}

void RankSimulation::Hostile(Rank* rank) {
  const ChunkId mine = AnyChunk(*rank), other = AnyChunkOfOthers(), third = AnyChunkOfOthers();
  switch (random_.Below(8)) {
    case 0: {
      FetchCall fetch;
      fetch.session = rank->session;
      fetch.tier = Tier::kHost;
      fetch.access = random_.Percent(50) ? Access::kWrite : Access::kRead;
      fetch.chunks = {mine, other};
      return Ask(fetch);
    }
    case 1:
      rank->leases.erase(other);
      return Ask(FreeCall{CallId(), rank->session, next_request_++, {other}});
    case 2:
      rank->leases.erase(other);
      return Ask(DiscardCall{CallId(), rank->session, next_request_++, {other}});
    case 3:
      rank->leases.erase(other);
      rank->leases.erase(third);
      return Ask(EvictCall{CallId(), rank->session, Tier::kHost, {other, third}});
    case 4: {
      CommitCall call;
      call.session = rank->session;
      call.step = rank->step + 1;
      call.chunks = {other};
      call.shadows = {random_.Percent(50) ? mine : third};
      return Ask(call);
    }
    case 5: {
      OpenCall open;
      open.session = SessionId(next_session_++);
      Feed(ClientConnected{open.session, 1000, 1});
      open.job_name = "training";
      open.rank = random_.Below(6);
      open.ranks = random_.Below(6);
      Ask(open);
      return Feed(ClientGone{open.session});
    }
    default: {
      StepCall call;
      call.session = rank->session;
      call.chunks = {mine, other, third};
      if (random_.Percent(60)) call.chunks[2] = rank->chunks[2];
      if (random_.Percent(50)) call.chunks[0] = rank->chunks[0], call.chunks[1] = rank->chunks[1];
      call.reads = random_.Below(4);
      call.part = random_.Below(4);
      call.contents = PartContents{{1, rank->step + 1}, {}};
      call.contents->work.low = call.contents->work.low * 8 + 1;
      for (uint32_t i = 0; i < random_.Below(4); ++i) {
        const auto content = rank->contents.find(call.chunks[i % 3]);
        const Stamp stamp = content == rank->contents.end() ? 7 : content->second.stamp;
        call.contents->reads.push_back({1, stamp + 1});
      }
      return Ask(call);
    }
  }
}

}  // namespace memtide::sim

// What the scripts do.
#include <algorithm>

#include "tests/sim/common/common_simulation.h"

namespace memtide::sim {
namespace {

// By their place in CommonConfig::weights.
enum Operation : uint32_t {
  kComplete,
  kTick,
  kConnect,
  kFetch,
  kWrite,
  kRelease,
  kOffer,
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
};

constexpr uint32_t kFirstUid = 1000;

}  // namespace

void CommonSimulation::Step() {
  uint32_t total = 0;
  for (const uint32_t weight : config_.weights) total += weight;
  uint32_t at = random_.Below(total), operation = 0;
  while (at >= config_.weights[operation]) at -= config_.weights[operation++];
  if (operation == kComplete) return Complete();
  if (operation == kTick) return PassTime(std::chrono::milliseconds(random_.Between(1, 100)));
  if (operation == kConnect) return Connect();
  std::vector<SessionId> ids;
  for (const auto& [id, script] : scripts_) {
    if (script.open && !script.hung) ids.push_back(id);
  }
  if (ids.empty()) return;
  StepScript(Find(ids[random_.Below(static_cast<uint32_t>(ids.size()))]), operation);
}

void CommonSimulation::StepScript(Script* script, uint32_t operation) {
  if (script->chunks.empty()) {
    if (script->allocating) return;
    script->allocating = true;
    return Ask(AllocateCall{CallId(), script->session, next_request_++, config_.chunks});
  }
  switch (operation) {
    case kFetch:
      return Fetch(script);
    case kWrite:
      return Write(script);
    case kRelease:
      return Release(script);
    case kOffer:
      return Offer(script);
    case kPart:
      return StartPart(script);
    case kEndPart:
      return EndPart(script);
    case kCommit:
      return Commit(script);
    case kEvict:
    case kPrefetch:
      return Move(script, operation == kEvict);
    case kFree:
      return Free(script);
    case kDiscard:
      return Discard(script);
    case kDie:
      return Die(script);
    case kClose:
      return Ask(CloseCall{CallId(), script->session});
    case kHang:
      Hit(CommonProbe::kHung);
      script->hung = true;
      return;
    default:
      return Hostile(script);
  }
}

// Regions for what is common fail at times, as where the machine has no memory.
void CommonSimulation::Complete() {
  if (node_.work().empty()) return;
  const size_t index = random_.Below(static_cast<uint32_t>(node_.work().size()));
  const Work& work = node_.work()[index];
  absl::Status status;
  if (work.kind == Work::Kind::kMakeRegion && node_.regions().at(work.region).read_only &&
      random_.Percent(config_.fail_region_percent)) {
    Hit(CommonProbe::kNoMemory);
    status = absl::ResourceExhaustedError("no memory");
  }
  Feed(node_.Complete(index, std::move(status)));
}

void CommonSimulation::Connect() {
  if (scripts_.size() >= config_.scripts) return;
  const SessionId session(next_session_++);
  Script& script = scripts_[session];
  script.session = session;
  script.uid = kFirstUid + random_.Percent(config_.other_user_percent);
  script.renewed = now_;
  Feed(ClientConnected{session, script.uid, 1});
  OpenCall open;
  open.session = session;
  open.chunk_size = MiB(2);
  open.elastic = config_.elastic;
  if (!config_.elastic) open.host_share = MiB(2) * (config_.chunks + 4);
  Ask(open);
}

ChunkId CommonSimulation::AnyChunk(const Script& script) {
  return script.chunks[random_.Below(static_cast<uint32_t>(script.chunks.size()))];
}

bool CommonSimulation::IsBusy(const Script& script, ChunkId chunk) const {
  const bool is_held = std::any_of(held_.begin(), held_.end(), [&](const auto& entry) {
    const std::vector<ChunkId>& writes = entry.second.writes;
    return entry.first.first == script.session &&
           std::count(writes.begin(), writes.end(), chunk) != 0;
  });
  return is_held || std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
           const auto* step = std::get_if<StepCall>(&entry.second);
           const auto* commit = std::get_if<CommitCall>(&entry.second);
           const auto names = [&](const std::vector<ChunkId>& chunks) {
             return std::count(chunks.begin(), chunks.end(), chunk) != 0;
           };
           return (step != nullptr && step->session == script.session && names(step->chunks)) ||
                  (commit != nullptr && commit->session == script.session &&
                   (names(commit->chunks) || names(commit->shadows)));
         });
}

void CommonSimulation::Fetch(Script* script) {
  FetchCall fetch;
  fetch.session = script->session;
  fetch.tier = Tier::kHost;
  fetch.access = random_.Percent(40) ? Access::kWrite : Access::kRead;
  fetch.chunks = {AnyChunk(*script)};
  const ChunkId second = AnyChunk(*script);
  if (random_.Percent(30) && second != fetch.chunks[0]) fetch.chunks.push_back(second);
  fetch.wait = !random_.Percent(10);
  if (random_.Percent(20)) {
    const ChunkId released = AnyChunk(*script);
    if (script->leases.erase(released) != 0) fetch.releases = {released};
  }
  for (const ChunkId chunk : fetch.chunks) {
    const auto lease = script->leases.find(chunk);
    if (fetch.access == Access::kWrite && lease != script->leases.end() &&
        IsCommon(lease->second.place)) {
      Hit(CommonProbe::kLeftBehind);
    }
  }
  Ask(fetch);
}

// Scripts fill chunks with one of few contents, mostly.
void CommonSimulation::Write(Script* script) {
  std::vector<ChunkId> writable;
  for (const auto& [chunk, lease] : script->leases) {
    if (lease.access == Access::kWrite && !IsBusy(*script, chunk)) writable.push_back(chunk);
  }
  if (writable.empty()) return;
  const ChunkId chunk = writable[random_.Below(static_cast<uint32_t>(writable.size()))];
  const MemoryPlace place = script->leases.at(chunk).place;
  if (node_.regions().at(place.region).read_only) {
    return verdict_.Broken("a lease for writing is where nobody may write");
  }
  const bool alike = random_.Percent(85);
  const Stamp stamp = alike ? random_.Below(config_.contents) : 1'000'000 + next_stamp_++;
  node_.Write(place, stamp);
  script->contents[chunk] = {stamp};
  if (random_.Percent(80)) Release(script);
}

std::optional<Event> CommonSimulation::GiveBack(Script* script,
                                                const std::vector<ChunkId>& chunks) {
  ReleaseCall release;
  release.session = script->session;
  release.request_id = next_request_++;
  for (const auto& [chunk, lease] : script->leases) {
    const bool named =
        chunks.empty() || std::find(chunks.begin(), chunks.end(), chunk) != chunks.end();
    if (named) release.chunks.push_back(chunk);
  }
  if (release.chunks.empty()) return std::nullopt;
  for (const ChunkId chunk : release.chunks) script->leases.erase(chunk);
  return release;
}

void CommonSimulation::Release(Script* script) {
  std::vector<ChunkId> some;
  if (!script->leases.empty() && random_.Percent(30)) some = {script->leases.begin()->first};
  if (std::optional<Event> release = GiveBack(script, some)) Ask(*std::move(release));
}

void CommonSimulation::Offer(Script* script) {
  OfferCall offer;
  offer.session = script->session;
  for (const ChunkId chunk : script->chunks) {
    if (random_.Percent(80) && script->contents.count(chunk) != 0) offer.chunks.push_back(chunk);
  }
  if (offer.chunks.empty()) return;
  if (random_.Percent(20)) offer.deadline = config_.limits.max_wait / 2;
  Ask(offer);
}

void CommonSimulation::StartPart(Script* script) {
  StepCall call;
  call.session = script->session;
  std::vector<ChunkId> chunks = script->chunks;
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    std::swap(chunks[i], chunks[i + random_.Below(static_cast<uint32_t>(chunks.size() - i))]);
  }
  chunks.resize(std::min<size_t>(chunks.size(), random_.Between(2, 4)));
  call.chunks = chunks;
  call.reads = random_.Below(static_cast<uint32_t>(chunks.size()));
  call.part = 1 + random_.Below(4);
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    const auto content = script->contents.find(chunks[i]);
    if (content == script->contents.end() || IsBusy(*script, chunks[i])) return;
    if (i < call.reads && !content->second.defined) return;
  }
  for (uint32_t i = call.reads; i < chunks.size(); ++i) {
    Content& content = script->contents.at(chunks[i]);
    // It may be shared before the offer that waits is answered.
    const bool is_offered = std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
      const auto* offer = std::get_if<OfferCall>(&entry.second);
      return offer != nullptr && offer->session == script->session;
    });
    if (!content.shared && !is_offered) continue;
    Hit(CommonProbe::kWrittenByPart);
    // The chunk leaves what it shares with the call, not when the part begins.
    content = {kZeros, /*defined=*/false};
  }
  Ask(call);
}

void CommonSimulation::EndPart(PartKey key, bool computed) {
  if (computed) node_.ComputePart(key);
  const auto found = held_.find(key);
  if (found != held_.end()) {
    const Held held = found->second;
    held_.erase(found);
    node_.EndPart(key);
    Script* const script = Find(key.first);
    for (size_t i = 0; script != nullptr && i < held.writes.size(); ++i) {
      const auto content = script->contents.find(held.writes[i]);
      if (content == script->contents.end()) continue;
      content->second = computed ? Content{StepResult(held.read, held.work, i)}
                                 : Content{kZeros, /*defined=*/false};
    }
  }
  Ask(EndPartCall{CallId(), key.first, key.second, computed, 0});
}

void CommonSimulation::EndPart(Script* script) {
  std::vector<PartKey> keys;
  for (const auto& [key, held] : held_) {
    if (key.first == script->session) keys.push_back(key);
  }
  if (keys.empty()) return;
  EndPart(keys[random_.Below(static_cast<uint32_t>(keys.size()))], !random_.Percent(20));
}

void CommonSimulation::Commit(Script* script) {
  if (script->chunks.size() < 2) return;
  CommitCall call;
  call.session = script->session;
  call.step = script->step + 1;
  for (size_t i = 0; i + 1 < script->chunks.size(); i += 2) {
    const ChunkId chunk = script->chunks[i], shadow = script->chunks[i + 1];
    if (script->contents.count(chunk) == 0 || script->contents.count(shadow) == 0) continue;
    if (IsBusy(*script, chunk) || IsBusy(*script, shadow)) continue;
    if (!script->contents.at(shadow).defined || random_.Percent(40)) continue;
    call.chunks.push_back(chunk);
    call.shadows.push_back(shadow);
  }
  if (call.chunks.empty()) return;
  call.keep_old_content = random_.Percent(40);
  Ask(call);
}

void CommonSimulation::Move(Script* script, bool evict) {
  const ChunkId chunk = AnyChunk(*script);
  if (!evict) return Ask(PrefetchCall{CallId(), script->session, Tier::kHost, {chunk}});
  script->leases.erase(chunk);
  const Tier tier = config_.ssd_slots != 0 && random_.Percent(70) ? Tier::kSsd : Tier::kHost;
  Ask(EvictCall{CallId(), script->session, tier, {chunk}});
}

void CommonSimulation::Free(Script* script) {
  Ask(FreeCall{CallId(), script->session, next_request_++, {AnyChunk(*script)}});
}

void CommonSimulation::Discard(Script* script) {
  const ChunkId chunk = AnyChunk(*script);
  if (IsBusy(*script, chunk)) return;
  Ask(DiscardCall{CallId(), script->session, next_request_++, {chunk}});
}

void CommonSimulation::Die(Script* script) {
  const SessionId id = script->session;
  for (const auto& [call, event] : calls_) {
    const auto* offer = std::get_if<OfferCall>(&event);
    if (offer != nullptr && offer->session == id) Hit(CommonProbe::kDiedInOffer);
  }
  for (const auto& [part, held] : held_) {
    if (part.first == id && random_.Percent(50)) node_.ComputePart(part);
  }
  for (const auto& [chunk, lease] : script->leases) {
    if (lease.access == Access::kWrite) node_.Write(lease.place, node_.NewPoison());
  }
  Feed(ClientGone{id});
}

// Uses ids of other scripts, of any user, and of entries whose ids no script got.
void CommonSimulation::Hostile(Script* script) {
  std::vector<ChunkId> others;
  for (const auto& [id, other] : scripts_) {
    others.insert(others.end(), other.chunks.begin(), other.chunks.end());
  }
  ChunkId other = others[random_.Below(static_cast<uint32_t>(others.size()))];
  if (random_.Percent(30)) {
    other = ChunkId(uint64_t{1 + random_.Below(6)} << 32 | random_.Below(40));
  }
  const std::vector<ChunkId> named = random_.Percent(50)
                                         ? std::vector<ChunkId>{other}
                                         : std::vector<ChunkId>{AnyChunk(*script), other};
  switch (random_.Below(5)) {
    case 0: {
      FetchCall fetch;
      fetch.session = script->session;
      fetch.tier = Tier::kHost;
      fetch.access = random_.Percent(50) ? Access::kWrite : Access::kRead;
      fetch.chunks = named;
      return Ask(fetch);
    }
    case 1:
      return Ask(FreeCall{CallId(), script->session, next_request_++, named});
    case 2:
      return Ask(OfferCall{CallId(), script->session, named});
    case 3:
      return Ask(DiscardCall{CallId(), script->session, next_request_++, named});
    default: {
      CommitCall call;
      call.session = script->session;
      call.step = script->step + 1;
      call.chunks = {other};
      call.shadows = {AnyChunk(*script)};
      return Ask(call);
    }
  }
}

}  // namespace memtide::sim

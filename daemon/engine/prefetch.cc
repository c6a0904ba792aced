// Prefetch and early write-back: while links are idle, chunks with the next predicted uses move up,
// and the next victims are written back.
#include <algorithm>
#include <map>
#include <utility>

#include "daemon/engine/state.h"

namespace memtide {

namespace {

constexpr Tier kMemoryTiers[] = {Tier::kDevice, Tier::kHost};

// Bytes in flight to a tier by prefetch. With more, a fetch would wait longer behind them than it
// gains: 64 MiB take a disk about 30 ms.
constexpr Bytes kMaxPrefetch = MiB(64);
// How many uses ahead NeededUntil() examines, and after how many uses it runs again.
constexpr uint64_t kMaxLookahead = 512, kLookaheadPeriod = 4;
// Leases that one event revokes because other chunks are predicted sooner.
constexpr int kMaxRevoked = 4;

constexpr int Index(StartTransfer::Kind kind) { return static_cast<int>(kind); }

// No transfer to the tier is needed for the next use.
bool IsThere(const Chunk& chunk, Tier tier) {
  return chunk.copies.valid == 0 || chunk.valid_at(tier) || chunk.valid_at(chunk.job->work);
}

}  // namespace

void EngineState::SchedulePrefetch(Job& job) {
  if (!options_.placement->works_ahead() || !job.predictor.has_prediction()) return;
  work_.AddPrefetch(job.listed_work);
}

// Runs after all else has settled: one chunk at a time, because each changes which chunks the next
// may displace.
bool EngineState::PrefetchOrWriteBack() {
  while (Job* const job = work_.prefetching()) {
    if (job->state == Job::State::kRunning) {
      for (const Tier tier : kMemoryTiers) {
        if (Prefetch(*job, tier) || WriteBackEarly(*job, tier)) return true;
      }
    }
    work_.FinishPrefetch();
  }
  return false;
}

bool EngineState::Prefetch(Job& job, Tier tier) {
  TierShare& share = job.tier(tier);
  if (!share.exists() || tier == job.home || !share.slot_queue.empty()) return false;
  const uint32_t slots = share.slots->size();
  const uint64_t most = std::min<uint64_t>(std::max(uint32_t{1}, slots / 4),
                                           std::max<uint64_t>(2, kMaxPrefetch / job.chunk_size));
  const uint64_t now = job.predictor.now();
  share.prefetched_until = std::max(share.prefetched_until, now);
  if (now >= share.recompute_at) {
    share.needed_until = NeededUntil(job, tier);
    share.recompute_at = now + kLookaheadPeriod;
  }
  for (; share.prefetches.value() < most && share.prefetched_until < share.needed_until;
       ++share.prefetched_until) {
    const absl::optional<uint32_t> member = job.predictor.At(share.prefetched_until);
    if (!member.has_value()) return false;
    const ChunkIndex index = IndexWanted(job, *member, share.prefetched_until);
    if (index == kNoChunk) continue;
    Chunk& chunk = chunks_[index];
    // Later than that if the member was used out of order, or if the commit before this use gives
    // the content to its counterpart.
    const uint64_t expected = NextUseOfContent(chunk);
    if (expected > share.prefetched_until) continue;
    const bool there = IsThere(chunk, tier);
    const bool coming = chunk.pinned() || chunk.prefetch_to.value_or(Tier::kSsd) <= tier;
    if (there || coming || chunk.evict_to.has_value() || chunk.evicted) continue;
    if (tier == Tier::kDevice && chunk.only_stepped)
      continue;  // Steps use the chunk in host memory.
    // On(TransferDone) returns here when the chunk has reached the host.
    if (tier == Tier::kDevice && !chunk.valid_at(Tier::kHost)) continue;
    if (chunk.copies.flight.has_value() || !HasRoomUntil(job, tier, expected)) return false;
    StopPrefetch(chunk);
    share.prefetches.Set(chunk.prefetch_to, tier);
    CancelEviction(chunk);
    ScheduleChunk(index);
    ++share.prefetched_until;
    return true;
  }
  return false;
}

// How long the prefetch of the chunk occupies its link, in microseconds. Device copies start from
// host memory, and the host tier prefetches on its own schedule.
uint64_t EngineState::MicrosToPromote(const Chunk& chunk, Tier tier) const {
  using Kind = StartTransfer::Kind;
  const Job& job = *chunk.job;
  if (IsThere(chunk, tier)) return 0;
  return job.link_micros[Index(tier == Tier::kDevice ? Kind::kHostToDevice : Kind::kSsdToHost)];
}

// The virtual time up to which chunks must be prefetched now. Prefetching too early evicts a chunk
// that still has a use, so that a prefetch starts as late as link bandwidth allows. The next chance
// to start one is when the job reports its next use.
uint64_t EngineState::NeededUntil(const Job& job, Tier tier) const {
  const uint64_t now = job.predictor.now();
  uint64_t until = now, busy = 0, next_report = 0;
  for (uint64_t time = now; time < now + kMaxLookahead; ++time) {
    const absl::optional<uint32_t> member = job.predictor.At(time);
    if (!member.has_value()) break;
    if (next_report == 0) {
      next_report = job.predictor.MicrosUntil(time);
      busy += next_report;
    }
    const ChunkIndex index = IndexWanted(job, *member, time);
    if (index == kNoChunk || NextUseOfContent(chunks_[index]) != time) continue;
    busy += MicrosToPromote(chunks_[index], tier);
    if (busy >= job.predictor.MicrosUntil(time)) until = time + 1;
  }
  return until;
}

void EngineState::NoteLink(Job& job, StartTransfer::Kind kind, Instant start) {
  Instant& free = job.link_free[Index(kind)];
  const auto micros = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now_ - std::max(start, free)).count());
  free = now_;
  uint64_t& average = job.link_micros[Index(kind)];
  average = average == 0 ? micros : (7 * average + micros) / 8;
}

// The victim that may leave for a chunk with a use at `time`. Copies with a sooner use stay.
absl::optional<Candidate> EngineState::VictimAfter(const Job& job, Tier tier, uint64_t time) const {
  const absl::optional<Candidate> victim = job.tier(tier).victims.Next(job.predictor.now());
  if (!victim.has_value()) return absl::nullopt;
  const bool later = victim->cost == EvictionCost::kDuplicate || victim->next_use > time;
  // A copy that the residency plan retains makes room only for a demand transfer. While most of the
  // tier is leased, the planned victims cannot leave, and the next uses would come late: then it
  // may leave, too.
  const TierShare& share = job.tier(tier);
  const bool planned = job.plan.has_value() && 2 * share.pinned_chunks() < share.slots->size();
  const bool stays = victim->cost == EvictionCost::kOnly || victim->cost == EvictionCost::kClean;
  return later && !(stays && planned) ? victim : absl::nullopt;
}

// Whether a chunk with a use at `time` can have a slot without displacing one with a sooner use.
bool EngineState::HasRoomUntil(Job& job, Tier tier, uint64_t time) {
  const SlotPool& slots = *job.tier(tier).slots;
  if (slots.spare_slots() > 0 || job.tier(tier).can_grow()) return true;
  if (VictimAfter(job, tier, time).has_value()) return true;
  if (tier == job.work) RevokeFarthest(job, time);
  return false;
}

// Revokes leases of chunks whose next use comes after `time`.
void EngineState::RevokeFarthest(Job& job, uint64_t time) {
  std::map<SessionId, Revoke> revokes;
  int asked = 0;
  job.tier(job.work).pinned_queue.VisitFarthest([&](const Candidate& candidate) {
    const bool leaves = candidate.cost == EvictionCost::kLeaving;
    if (!leaves && (candidate.next_use <= time || job.plan.has_value())) return false;
    if (candidate.next_use <= time) return true;
    Chunk& chunk = chunks_[job.members[candidate.member]];
    if (!chunk.revoke_sent && chunk.waiters.empty()) {
      chunk.revoke_sent = true;
      for (const Pin& pin : chunk.pins) {
        if (!pin.granted() || sessions_.Find(pin.session) == nullptr) continue;
        revokes[pin.session].chunks.push_back(IdOf(job.members[candidate.member]));
      }
    }
    return ++asked < kMaxRevoked;
  });
  for (auto& [session, revoke] : revokes) {
    revoke.session = session;
    ++counters_.revokes;
    Emit(std::move(revoke));
  }
}

// Writes the next victim back while its link is idle, so that it can be dropped at once when its
// slot is needed.
bool EngineState::WriteBackEarly(Job& job, Tier tier) {
  using Kind = StartTransfer::Kind;
  TierShare& share = job.tier(tier);
  if (!share.exists() || tier == job.home || share.slots->spare_slots() > 0) return false;
  const bool idle = tier == Tier::kDevice ? job.flights[Index(Kind::kDeviceToHost)] == 0
                                          : job.flights[Index(Kind::kHostToSsd)] == 0 &&
                                                job.flights[Index(Kind::kSsdToHost)] == 0;
  if (!idle) return false;
  const uint64_t now = job.predictor.now();
  const absl::optional<Candidate> victim = share.victims.Next(now);
  const EvictionCost leaving = job.plan.has_value() ? EvictionCost::kLeaving : EvictionCost::kOnly;
  if (!victim.has_value() || victim->cost != leaving) return false;
  const ChunkIndex index = job.members[victim->member];
  if (chunks_[index].pinned() || chunks_[index].write_back_from.has_value()) return false;
  if (tier == Tier::kDevice && job.home != Tier::kHost &&
      !IsWorthASlot(job, Tier::kHost, victim->next_use)) {
    return false;
  }
  chunks_[index].write_back_from = tier;
  ScheduleChunk(index);
  return true;
}

// Whether a copy for a use at `time` may take a slot there now, without a write-back and without
// displacing a chunk with a sooner use.
bool EngineState::IsWorthASlot(const Job& job, Tier tier, uint64_t time) const {
  const TierShare& share = job.tier(tier);
  if (!share.exists() || !share.slot_queue.empty()) return false;
  if (share.slots->spare_slots() > 0) return true;
  const absl::optional<Candidate> victim = VictimAfter(job, tier, time);
  return victim.has_value() && victim->cost != EvictionCost::kOnly &&
         victim->cost != EvictionCost::kLeaving;
}

}  // namespace memtide

// Elastic shares: the host and SSD memory of jobs that requested no size.
//
// An elastic share holds all free memory until other jobs need it. Its guaranteed share (in host
// memory a quarter of what is not guaranteed to others, and at least a dozen slots, which an
// optimizer step needs) is never reclaimed. When the job would have to evict, the share grows: from
// free memory, or, up to the fair share of the pool, from jobs that are above theirs. Those first
// give slots that they never used, jobs without sessions give all but their guaranteed share, and
// then victims leave their slots as for the balloon (balloon.cc). Jobs that need memory thus have
// halves, thirds and so on of a pool, and one job alone has all of it.
//
// Leases are not ended for a reclaim, and a share never falls below its leases and its waiting
// calls: no accepted call is refused for it. On SSD, the home of chunks, only slots that were never
// used are reclaimed.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "daemon/engine/state.h"

namespace memtide {

namespace {

constexpr uint32_t kGuaranteedPart = 4, kLeastGuaranteed = 12, kSegmentsOfPool = 8;

bool IsActive(const Job& job) {
  return job.state == Job::State::kMaking || job.state == Job::State::kRunning;
}

Bytes AskedOf(const OpenCall& open, Tier tier) {
  return tier == Tier::kDevice ? open.device_share
         : tier == Tier::kHost ? open.host_share
                               : open.ssd_share;
}

uint32_t CeilDiv(Bytes a, Bytes b) {
  return static_cast<uint32_t>(a / b + (a.IsMultipleOf(b) ? 0 : 1));
}

// The next number of slots that whole segments reach, from `slots` up or down. The rest of a
// partial segment would be idle.
uint32_t Reachable(const TierShare& share, uint64_t slots, bool up) {
  const uint64_t made =
      share.slots == nullptr
          ? 0
          : share.slots->numbers() + (share.making == kNoSegment ? 0 : share.next_segment_slots());
  if (slots >= share.limit) return share.limit;
  if (slots <= made) return static_cast<uint32_t>(slots);
  const uint64_t each = share.slots_per_segment;
  const uint64_t segments = (slots - made + (up ? each - 1 : 0)) / each;
  return static_cast<uint32_t>(std::min<uint64_t>(share.limit, made + segments * each));
}

}  // namespace

Bytes EngineState::Free(Tier tier) const {
  return capacity_[static_cast<int>(tier)] - Lent(tier) - Scrubbing(tier);
}

// Capacity that is not promised to any job: it excludes fixed shares and guaranteed shares. A
// guaranteed share may be larger than its share is so far, and may include memory that ending jobs
// still have.
Bytes EngineState::Unguaranteed(Tier tier) const {
  const Bytes capacity = capacity_[static_cast<int>(tier)];
  Bytes guaranteed = Scrubbing(tier);
  for (const auto& [id, job] : jobs_) {
    const TierShare& share = job->tier(tier);
    if (job->state == Job::State::kEnding) continue;
    guaranteed += share.is_elastic() ? job->chunk_size * share.guaranteed : share.lent;
  }
  return capacity - std::min(capacity, guaranteed);
}

bool EngineState::IsElastic(const OpenCall& open, Tier tier) const {
  const bool may_be = tier != Tier::kDevice && !capacity_[static_cast<int>(Tier::kSsd)].IsZero();
  return open.elastic && may_be && AskedOf(open, tier).IsZero();
}

// An equal part, for each job that runs or waits to be opened, of all that is in no fixed share.
Bytes EngineState::FairShare(Tier tier) const {
  Bytes shared = Unguaranteed(tier);
  uint64_t jobs = 0;
  for (const auto& [id, job] : jobs_) {
    const TierShare& share = job->tier(tier);
    if (!share.is_elastic() || !IsActive(*job)) continue;
    ++jobs;
    shared += job->chunk_size * share.guaranteed;
  }
  for (const WaitingOpen& open : opens_) {
    jobs += IsElastic(open.call, tier);
    shared -= std::min(shared, AskedOf(open.call, tier));
  }
  return Bytes(shared.count() / std::max<uint64_t>(1, jobs));
}

// A small pool has small segments. Otherwise the first job would take all of it.
uint64_t EngineState::UsualSegment(Tier tier, Bytes chunk) const {
  const uint64_t slots =
      std::min(kSegmentSize, Bytes(capacity_[static_cast<int>(tier)].count() / kSegmentsOfPool)) /
      chunk;
  return std::min(std::max(uint64_t{kMinSlots}, slots),
                  std::max(uint64_t{1}, kMaxRegionSize / chunk));
}

// The slots without which no job can begin.
uint64_t EngineState::LeastShare(Tier tier, Bytes chunk) const {
  if (tier == Tier::kSsd) return kMinSlots;
  const uint64_t segment = UsualSegment(tier, chunk);
  return (kLeastGuaranteed + segment - 1) / segment * segment;
}

absl::Status EngineState::LendElastic(Job& job, Tier tier) {
  TierShare& share = job.tier(tier);
  const Bytes chunk = job.chunk_size;
  const uint64_t most =
      std::min<uint64_t>(Unguaranteed(tier) / chunk, uint64_t{options_.limits.chunks});
  const uint64_t free = std::min<uint64_t>(Free(tier) / chunk, most);
  const uint64_t least = LeastShare(tier, chunk);
  if (most < kMinSlots || free < std::min(most, least)) {
    return NotEnough(tier, Bytes(0), chunk, least);
  }
  uint64_t each = std::min(UsualSegment(tier, chunk), free), guaranteed = each;
  if (tier == Tier::kHost) {
    guaranteed = std::min(most, std::max(uint64_t{kLeastGuaranteed}, most / kGuaranteedPart));
    each = std::min(each, guaranteed / 2);
    guaranteed = std::min((guaranteed + each - 1) / each, most / each) * each;
  }
  share.limit = static_cast<uint32_t>(most);
  share.guaranteed = static_cast<uint32_t>(guaranteed);
  share.slots_per_segment = static_cast<uint32_t>(each);
  share.target = Reachable(share, free, /*up=*/false);
  return absl::OkStatus();
}

void EngineState::SetTarget(Job& job, Tier tier, uint32_t target) {
  TierShare& share = job.tier(tier);
  if (target == share.target) return;
  // The slots of the balloon go first, because they hold no chunk.
  const uint32_t less = share.target - std::min(share.target, target);
  share.balloon -= std::min(share.balloon, less);
  (tier == Tier::kSsd ? counters_.ssd_reclaimed : counters_.host_reclaimed) +=
      job.chunk_size * less;
  share.target = target;
  share.slots->Resize(target - share.balloon);
  Charge(job, tier);
  if (tier == Tier::kHost) SendBudgets(job);
  ScheduleRoomCheck(job, tier);
}

void EngineState::GrowShare(Job& job, Tier tier, uint32_t lacking) {
  TierShare& share = job.tier(tier);
  if (!share.is_elastic() || !IsActive(job) || share.target == share.limit) return;
  const uint32_t wanted = Reachable(share, uint64_t{share.target} + lacking, /*up=*/true);
  if (wanted <= share.target) return;
  const Bytes more = job.chunk_size * (wanted - share.target);
  const bool is_guaranteed = wanted <= share.guaranteed;
  const bool entitled =
      tier == Tier::kSsd || is_guaranteed || job.chunk_size * wanted <= FairShare(tier);
  if (entitled && more > Free(tier)) {
    share.starved = tier == Tier::kHost;
    ReclaimFromOthers(tier, more, is_guaranteed ? Need::kGuaranteed : Need::kMore, &job);
  }
  // Priority for free memory: waiting Opens, then jobs below their fair share, then all others.
  bool others_first = !is_guaranteed && !opens_.empty();
  for (const auto& [id, other] : jobs_) {
    others_first = others_first || (!entitled && other->tier(tier).starved);
  }
  const Bytes free = others_first ? Bytes(0) : Free(tier);
  const uint64_t most = std::min<uint64_t>(wanted, share.target + free / job.chunk_size);
  const uint32_t target = Reachable(share, most, /*up=*/false);
  if (target == wanted) share.starved = false;
  if (target > share.target) SetTarget(job, tier, target);
}

// The size below which other jobs may not push the share: its guaranteed share, and for more than
// the guaranteed shares of others, the fair share.
uint32_t EngineState::Floor(const Job& job, Tier tier, Need need, bool only_unused) const {
  const TierShare& share = job.tier(tier);
  uint64_t floor = share.guaranteed;
  if (IsActive(job)) {
    if (need == Need::kMore) {
      floor = std::max<uint64_t>(floor, FairShare(tier) / job.chunk_size);
    }
    const uint64_t used = std::max(share.pinned_chunks(), job.waiting.LargestAt(tier));
    // Page faults without a fetch still need slots.
    if (tier == Tier::kHost) floor = std::max(floor, used + kMinSlots);
  }
  if (only_unused || tier == Tier::kSsd) floor = std::max<uint64_t>(floor, share.made_slots());
  return static_cast<uint32_t>(std::min<uint64_t>(floor, share.target));
}

// Memory that is free, or is being given back.
Bytes EngineState::FreeSoon(Tier tier) const {
  Bytes coming = Free(tier);
  for (const auto& [id, job] : jobs_) {
    const TierShare& share = job->tier(tier);
    if (job->state == Job::State::kEnding || !share.is_elastic()) continue;
    coming += share.lent - job->chunk_size * share.target;
  }
  return coming;
}

void EngineState::ReclaimFromOthers(Tier tier, Bytes needed, Need need, const Job* asking) {
  for (const bool only_unused : {true, false}) {
    for (const bool running : {false, true}) {
      for (const auto& [id, job] : jobs_) {
        const TierShare& share = job->tier(tier);
        const bool lends = share.is_elastic() && job.get() != asking &&
                           (running ? IsActive(*job) : job->state == Job::State::kLingering);
        const Bytes soon = FreeSoon(tier);
        if (!lends || soon >= needed) continue;
        const uint32_t slots = std::min(share.target, CeilDiv(needed - soon, job->chunk_size));
        const uint32_t floor = Floor(*job, tier, need, only_unused);
        const uint32_t target = Reachable(share, share.target - slots, /*up=*/false);
        SetTarget(*job, tier, std::max(target, Reachable(share, floor, /*up=*/true)));
      }
    }
  }
}

bool EngineState::ReclaimForOpen(const OpenCall& open) {
  bool lacks = false;
  if (open.device_share > Free(Tier::kDevice)) return false;
  for (const Tier tier : {Tier::kHost, Tier::kSsd}) {
    if (capacity_[static_cast<int>(tier)].IsZero()) continue;
    Bytes needed = RoundDown(AskedOf(open, tier), open.chunk_size);
    if (IsElastic(open, tier)) {
      needed = open.chunk_size * LeastShare(tier, open.chunk_size);
      needed = std::min(RoundDown(Unguaranteed(tier), open.chunk_size), needed);
    }
    if (needed <= Free(tier)) continue;
    if (needed > Unguaranteed(tier)) return false;
    ReclaimFromOthers(tier, needed, Need::kGuaranteed, nullptr);
    // On SSD no victim leaves, so that waiting would not help. In host memory leases end.
    if (tier == Tier::kSsd && needed > Free(tier)) return false;
    lacks = true;
  }
  return lacks;
}

bool EngineState::ServeFreed() {
  if (ended_.empty() && !freed_) return false;
  for (const JobId job : ended_) jobs_.erase(job);
  ended_.clear();
  freed_ = false;
  for (const auto& [id, job] : jobs_) {
    if (job->tier(Tier::kHost).starved) ScheduleRoomCheck(*job, Tier::kHost);
  }
  OpenWaiting();
  return true;
}

}  // namespace memtide

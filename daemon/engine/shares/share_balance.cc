// The part of the ShareLedger that moves memory between jobs, and between jobs and the machine.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/engine/shares/share_ledger.h"

namespace memtide {

namespace {

// A balloon deflates only when the reserve is exceeded by half of it, or by this much, so that it
// does not follow every allocation of other programs.
constexpr Bytes kMostSlack = MiB(512);

// A guaranteed share of host or device memory is a quarter of what is not guaranteed to others, or
// a smaller part of host memory where several sessions have much of it in common. There it is at
// least the 12 slots that one step part may need at once (decision 18), and kMinSlots for each
// rank, which must lease two chunks at once where an access crosses a border. A segment aims at an
// eighth of its pool at most.
constexpr uint32_t kGuaranteedPart = 4, kLeastGuaranteed = 12, kSegmentsOfPool = 8;

uint64_t MinSlots(uint32_t ranks) { return uint64_t{kMinSlots} * std::max(uint32_t{1}, ranks); }

uint32_t CeilDiv(Bytes a, Bytes b) {
  return static_cast<uint32_t>(a / b + (a.IsMultipleOf(b) ? 0 : 1));
}

}  // namespace

// A small pool has small segments. Otherwise the first job would take all of it.
uint64_t ShareLedger::UsualSegment(Tier tier, Bytes chunk) const {
  const Bytes part(capacity({tier}).count() / kSegmentsOfPool);
  return SegmentSlots(std::min(Share::kSegmentSize, part), chunk);
}

// The slots that a job begins with, if the pool has so many that are not guaranteed to others.
uint64_t ShareLedger::LeastShare(Tier tier, Bytes chunk, uint32_t ranks) const {
  if (tier != Tier::kHost) return MinSlots(ranks);
  const uint64_t segment = UsualSegment(tier, chunk);
  const uint64_t least = std::max(uint64_t{kLeastGuaranteed}, MinSlots(ranks));
  return (least + segment - 1) / segment * segment;
}

absl::Status ShareLedger::LendElastic(Share& share, const OpenCall& open) {
  const uint32_t ranks = open.ranks;
  const Tier tier = share.tier();
  const Pool pool = share.pool();
  const Bytes chunk = share.chunk_size();
  // `most` becomes the limit of the share, and `free` is what it can have now.
  const bool by_slot = tier == Tier::kDevice;
  if (by_slot) MEMTIDE_RETURN_IF_ERROR(CheckDeviceRegions(share, MinSlots(ranks)));
  const uint64_t of_pool = std::min<uint64_t>(Unguaranteed(pool) / chunk,
                                              by_slot ? MostDeviceRegions(share) : limits_.chunks);
  const uint64_t most = std::min(of_pool, MostSlots(share, Counting::kGuaranteed));
  const uint64_t permitted = std::min(most, MostSlots(share, Counting::kLent));
  const uint64_t free = std::min<uint64_t>(Free(pool) / chunk, permitted);
  const uint64_t least = LeastShare(tier, chunk, ranks);
  if (permitted < std::min(of_pool, least)) {
    return RefusedByQuota(share, absl::StrCat("all that is free, at least ",
                                              FormatBytes(chunk * std::min(of_pool, least))));
  }
  if (most < MinSlots(ranks) || free < std::min(most, least)) {
    return NotEnough(share, Bytes(0), least);
  }
  uint64_t each = by_slot ? 1 : std::min(UsualSegment(tier, chunk), free), guaranteed = each;
  if (by_slot) {
    guaranteed = std::max(MinSlots(ranks), std::min(most / kGuaranteedPart, permitted));
  } else if (tier == Tier::kHost) {
    const uint64_t part = most / (uint64_t{kGuaranteedPart} * std::max(1u, open.alike));
    guaranteed = std::min(permitted, std::max({uint64_t{kLeastGuaranteed}, MinSlots(ranks), part}));
    each = std::min(each, guaranteed / 2);
    // Memory is made in whole segments, so the guaranteed share is a multiple of one.
    guaranteed = std::min((guaranteed + each - 1) / each, permitted / each) * each;
  }
  share.by_slot_ = by_slot;
  share.limit_ = static_cast<uint32_t>(most);
  share.guaranteed_ = static_cast<uint32_t>(guaranteed);
  share.slots_per_segment_ = static_cast<uint32_t>(each);
  share.target_ = share.Reachable(free, /*up=*/false);
  share.slots_.emplace(share.target_);
  share.bytes_ = chunk * share.target_;
  return absl::OkStatus();
}

// An equal part, for each job that runs or waits to be opened, of all that is in no fixed share.
Bytes ShareLedger::FairShare(Pool pool, const Opens& opens) const {
  Bytes shared = Unguaranteed(pool);
  uint64_t jobs = opens.elastic;
  for (const auto& [id, job] : jobs_) {
    const Share* const share = job->In(pool);
    // Jobs without sessions do not count: what they have beyond their guarantee is reclaimed.
    if (share == nullptr || !share->is_elastic() || !job->is_active()) continue;
    jobs += job->fair_shares_;
    shared += share->chunk_size() * share->guaranteed();
  }
  shared -= std::min(shared, opens.requested);
  return Bytes(shared.count() / std::max<uint64_t>(1, jobs));
}

// Memory above the target of a share becomes free when its slots are released, and their regions
// returned.
Bytes ShareLedger::FreeSoon(Pool pool) const {
  Bytes coming = Free(pool);
  for (const auto& [id, job] : jobs_) {
    const Share* const share = job->In(pool);
    if (share == nullptr || job->state() == JobState::kEnding || !share->is_elastic()) continue;
    coming += share->bytes() - share->chunk_size() * share->target();
    coming += share->chunk_size() * share->leaving().size();
  }
  return coming;
}

ShareLedger::Change ShareLedger::ChangeOf(const Share& share) {
  return {share.job(), share.tier(), share.slots().size(), share.most_slots(), Bytes(0)};
}

ShareLedger::Change ShareLedger::SetTarget(Share& share, uint32_t target) {
  // The slots of the balloon go first, because they hold no chunk.
  const uint32_t less = share.target_ - std::min(share.target_, target);
  share.balloon_ -= std::min(share.balloon_, less);
  share.target_ = target;
  if (share.keeps_all_) share.guaranteed_ = std::max(uint32_t{1}, target);
  share.slots_->Resize(target - share.balloon_);
  Charge(share);
  Change change = ChangeOf(share);
  change.reclaimed = share.chunk_size() * less;
  return change;
}

absl::optional<ShareLedger::Growth> ShareLedger::PlanGrowth(Share& share, uint32_t lacking,
                                                            const Opens& opens) {
  const Tier tier = share.tier();
  const Pool pool = share.pool();
  if (!share.is_elastic() || share.target_ >= share.limit_) {
    share.starved_ = false;
    return absl::nullopt;
  }
  // A larger share would take memory from other jobs for which the machine has no pages now.
  if (share.make_later_) return absl::nullopt;
  if (!jobs_.at(share.job())->is_active()) return absl::nullopt;
  Growth growth;
  uint64_t wanted = uint64_t{share.target_} + lacking;
  if (share.by_slot_) {
    // Regions that sessions have not returned yet still exist.
    const uint64_t leaving = std::min<uint64_t>(share.leaving_.size(), limits_.device_regions);
    wanted = std::min(wanted, limits_.device_regions - leaving);
  }
  growth.target = share.Reachable(wanted, /*up=*/true);
  if (growth.target <= share.target_) return absl::nullopt;
  const Bytes more = share.chunk_size() * (growth.target - share.target_);
  if (share.keeps_all_ &&
      (more > Unguaranteed(pool) || growth.target > MostSlots(share, Counting::kGuaranteed))) {
    return absl::nullopt;
  }
  const Bytes fair_share = FairShare(pool, opens);
  const std::vector<Bound> bounds = BoundsOf(jobs_.at(share.job())->owner_);
  Bytes least_fair_share = fair_share;
  for (const Bound& bound : bounds) {
    least_fair_share = std::min(least_fair_share, FairShareUnder(bound, tier));
  }
  growth.is_guaranteed = growth.target <= share.guaranteed_;
  // On SSD only slots that were never used are reclaimed, so that no job loses anything to another.
  growth.is_entitled =
      tier == Tier::kSsd || growth.is_guaranteed ||
      share.chunk_size() * growth.target <= least_fair_share * jobs_.at(share.job())->fair_shares_;
  // Others give nothing back for it, or no more.
  if (!growth.is_entitled) share.starved_ = false;
  if (growth.is_entitled && more > Free(pool)) {
    // On SSD what is reclaimed is free at once. Above it the job waits for victims to leave.
    share.starved_ = tier != Tier::kSsd;
    growth.reclaim = Reclaim{pool, more, growth.is_guaranteed ? Bytes(0) : fair_share, &share};
  }
  // What is guaranteed counts as lent, so that a quota never withholds it.
  if (!growth.is_entitled || growth.is_guaranteed) return growth;
  for (const Bound& bound : bounds) {
    if (growth.target <= MostSlots(share, bound, Counting::kLent)) continue;
    share.starved_ |= tier != Tier::kSsd;
    const Bytes beyond =
        share.chunk_size() * (growth.target - std::max(share.target_, share.guaranteed_));
    growth.within_quotas.push_back({pool, beyond, FairShareUnder(bound, tier), &share, bound});
  }
  return growth;
}

absl::optional<ShareLedger::Change> ShareLedger::Grow(Share& share, const Growth& growth,
                                                      const Opens& opens) {
  const Pool pool = share.pool();
  // Priority for free memory: waiting Opens, then jobs below their fair share, then all others.
  bool others_first = !growth.is_guaranteed && opens.any;
  for (const auto& [id, other] : jobs_) {
    const Share* const its = other->In(pool);
    // A share that lacks room in its quota alone does not use what is free.
    others_first =
        others_first || (!growth.is_entitled && its != nullptr && its != &share && its->starved() &&
                         MostSlots(*its, Counting::kLent) > its->target());
  }
  const Bytes free = others_first ? Bytes(0) : Free(pool);
  const uint64_t permitted =
      std::max<uint64_t>(share.guaranteed_, MostSlots(share, Counting::kLent));
  const uint64_t most =
      std::min({uint64_t{growth.target}, share.target_ + free / share.chunk_size(), permitted});
  const uint32_t target = share.Reachable(most, /*up=*/false);
  if (target == growth.target) share.starved_ = false;
  if (target <= share.target_) return absl::nullopt;
  return SetTarget(share, target);
}

// The guaranteed share and what is claimed, or, for more than the guaranteed shares of others, the
// fair share.
uint32_t ShareLedger::Floor(const JobShares& job, const Reclaim& reclaim, const Demand& demand,
                            bool only_unused) const {
  const Tier tier = reclaim.pool.tier;
  const Share& share = job[tier];
  uint64_t floor = std::max(share.guaranteed(), share.slots_for_claims());
  if (job.is_active()) {
    floor = std::max<uint64_t>(floor, reclaim.fair_share / share.chunk_size());
    const uint64_t used = std::max(demand.pinned_chunks, demand.largest_waiting);
    // Page faults without a fetch still need slots.
    if (tier == Tier::kHost) floor = std::max(floor, used + share.claims() + kMinSlots);
    if (tier == Tier::kDevice) floor = std::max(floor, used);
  }
  if (only_unused || tier == Tier::kSsd) {
    floor = std::max<uint64_t>(floor, share.made_slots());
  }
  return static_cast<uint32_t>(std::min<uint64_t>(floor, share.target()));
}

ShareLedger::Changes ShareLedger::ReclaimFromOthers(const Reclaim& reclaim,
                                                    const Demands& demands) {
  Changes changes;
  // Slots that were never used cost nothing, so they go first. Then jobs without sessions give
  // theirs, and then running jobs evict.
  for (const bool only_unused : {true, false}) {
    for (const bool active : {false, true}) {
      for (const auto& [id, job] : jobs_) {
        const bool is_asked = reclaim.within ? IsUnder(*reclaim.within, job->owner_)
                                             : job->In(reclaim.pool) != nullptr;
        if (!is_asked) continue;
        Share& share = (*job)[reclaim.pool.tier];
        const Bytes lacking = Lacking(reclaim);
        const bool lends = share.is_elastic() && &share != reclaim.asking &&
                           (active ? job->is_active() : job->state() == JobState::kLingering);
        // What earlier reclaims have coming counts, so that they are not repeated.
        if (!lends || lacking.IsZero()) continue;
        const uint32_t slots = std::min(share.target(), CeilDiv(lacking, share.chunk_size()));
        const auto demand = demands.find(id);
        // Within a quota no fair share is rounded up, as what all have is to be below it.
        Reclaim most = reclaim;
        uint32_t fair = 0;
        if (reclaim.within && active) {
          fair = share.Reachable(std::exchange(most.fair_share, Bytes(0)) / share.chunk_size(),
                                 /*up=*/false);
        }
        const uint32_t floor =
            Floor(*job, most, demand == demands.end() ? Demand() : demand->second, only_unused);
        const uint32_t target =
            std::max({share.Reachable(share.target() - slots, /*up=*/false),
                      share.Reachable(floor, /*up=*/true), std::min(fair, share.target())});
        if (target != share.target()) changes.push_back(SetTarget(share, target));
      }
    }
  }
  return changes;
}

uint32_t ShareLedger::Inflatable(const JobShares& job) {
  const bool runs = job.state() == JobState::kRunning || job.state() == JobState::kLingering;
  const Share& host = job[Tier::kHost];
  return runs && job.home() == Tier::kSsd && host.exists() ? host.inflatable_slots() : 0;
}

ShareLedger::Changes ShareLedger::BalanceBalloons(Bytes available, Bytes reserve,
                                                  const Rises& rises) {
  Changes changes;
  Bytes coming, spareable;
  for (const auto& [id, job] : jobs_) {
    const Share& host = (*job)[Tier::kHost];
    if (!host.exists()) continue;
    // Memory on its way to the machine is counted as there, and memory on its way back as gone.
    // Otherwise each report would inflate the balloon again for the same shortage.
    available += host.chunk_size() * host.going_slots();
    coming += host.chunk_size() * host.coming_slots();
    spareable += host.chunk_size() * Inflatable(*job);
  }
  available -= std::min(available, coming);
  // The missing part of the reserve is divided in proportion to what each job can do without.
  if (available < reserve && !spareable.IsZero()) {
    const double fraction =
        std::min(1.0, static_cast<double>((reserve - available).count()) / spareable.count());
    for (const auto& [id, job] : jobs_) {
      Share& host = (*job)[Tier::kHost];
      const uint32_t slots = static_cast<uint32_t>(std::ceil(fraction * Inflatable(*job)));
      available += host.chunk_size() * slots;
      if (slots > 0) changes.push_back(Inflate(host, slots));
    }
  }
  for (const auto& [id, job] : jobs_) {
    const auto rise = rises.find(id);
    const absl::optional<Change> change =
        AdjustBalloon(*job, reserve, rise == rises.end() ? Bytes(0) : rise->second, &available);
    if (change.has_value()) changes.push_back(*change);
  }
  return changes;
}

// A reported size affects only the job of the reporter, so that no client can evict the chunks of
// others by lying.
absl::optional<ShareLedger::Change> ShareLedger::AdjustBalloon(JobShares& job, Bytes reserve,
                                                               Bytes rise, Bytes* available) {
  Share& host = job[Tier::kHost];
  const Bytes wanted = reserve + rise;
  const Bytes enough = wanted + std::min(Bytes(reserve.count() / 2), kMostSlack);
  if (*available < wanted) {
    const uint32_t slots =
        std::min(Inflatable(job), CeilDiv(wanted - *available, host.chunk_size()));
    *available += host.chunk_size() * slots;
    if (slots > 0) return Inflate(host, slots);
  } else if (*available > enough) {
    const uint64_t slots =
        std::min<uint64_t>(host.balloon(), (*available - enough) / host.chunk_size());
    *available -= host.chunk_size() * slots;
    if (slots > 0) return Deflate(host, static_cast<uint32_t>(slots));
  }
  return absl::nullopt;
}

// The slots are taken from those that have memory: one that was never made has nothing for the
// machine.
ShareLedger::Change ShareLedger::Inflate(Share& share, uint32_t slots) {
  const uint32_t most = share.slots_with_balloon();
  SlotPool& pool = *share.slots_;
  pool.Resize(std::min(pool.size(), pool.backed_slots()) - slots);
  share.balloon_ = most - pool.size();
  return ChangeOf(share);
}

ShareLedger::Change ShareLedger::Deflate(Share& share, uint32_t slots) {
  share.slots_->Resize(share.slots_->size() + slots);
  share.balloon_ -= slots;
  return ChangeOf(share);
}

absl::optional<ShareLedger::Change> ShareLedger::DeflateFor(Share& share, size_t waiting,
                                                            size_t evicting) {
  const SlotPool& pool = *share.slots_;
  const size_t there = pool.spare_slots() + evicting;
  if (share.balloon_ == 0 || waiting <= there) return absl::nullopt;
  const uint32_t backed = pool.backed_slots();
  // Stops releasing slots that have pages, and populates one for each waiting chunk.
  uint64_t wanted = backed + (waiting - there);
  // Where no released slot can be populated, a whole segment must fit into the pool.
  if (pool.unbacked_slots() == 0) {
    wanted = std::max<uint64_t>(wanted, backed + share.next_segment_slots());
  }
  const uint32_t slots =
      static_cast<uint32_t>(std::min<uint64_t>(wanted, share.slots_with_balloon()));
  if (slots <= pool.size()) return absl::nullopt;
  return Deflate(share, slots - pool.size());
}

SlotNumber ShareLedger::ReleaseSlot(Share& share) {
  return share.slots_->Unback(share.slots_->Take());
}

void ShareLedger::SlotReleased(Share& share, SlotNumber slot) {
  share.slots_->Gone(slot);
  Charge(share);
}

absl::optional<SlotNumber> ShareLedger::PopulateSlot(Share& share) {
  // Slots are populated one at a time, so that a machine without memory fails one request only.
  if (share.deflating_ || share.slots_->gone_slots() == 0) return absl::nullopt;
  share.deflating_ = true;
  return share.slots_->TakeGone();
}

void ShareLedger::SlotPopulated(Share& share, SlotNumber slot) {
  share.deflating_ = false;
  share.slots_->Returned(slot);
  Charge(share);
}

ShareLedger::Change ShareLedger::PopulateFailed(Share& share, SlotNumber slot) {
  share.deflating_ = false;
  share.slots_->Gone(slot);
  Charge(share);
  // The pool shrinks to what exists, and victims serve its waiting chunks instead.
  const uint32_t missing = share.slots_->missing_slots();
  share.slots_->Resize(share.slots_->size() - missing);
  share.balloon_ += missing;
  return ChangeOf(share);
}

}  // namespace memtide

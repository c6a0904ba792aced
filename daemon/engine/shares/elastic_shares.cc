#include "daemon/engine/shares/elastic_shares.h"

#include <algorithm>
#include <utility>

namespace memtide {

// An equal part, for each job that runs or waits to be opened, of all that is in no fixed share.
Bytes ElasticShares::FairShare(Pool pool, const SharePools::Opens& opens) const {
  Bytes shared = pools_.Unguaranteed(pool);
  uint64_t jobs = opens.elastic;
  for (const auto& [id, job] : pools_.jobs()) {
    const Share* const share = job->In(pool);
    // Jobs without sessions do not count: what they have beyond their guarantee is reclaimed.
    if (share == nullptr || !share->is_elastic() || !job->is_active()) continue;
    jobs += job->fair_shares();
    shared += share->chunk_size() * share->guaranteed();
  }
  shared -= std::min(shared, opens.requested);
  return Bytes(shared.count() / std::max<uint64_t>(1, jobs));
}

SharePools::Change ElasticShares::SetTarget(Share& share, uint32_t target) {
  // The slots of the balloon go first, because they hold no chunk.
  const uint32_t less = share.target_ - std::min(share.target_, target);
  share.balloon_ -= std::min(share.balloon_, less);
  share.target_ = target;
  if (share.keeps_all_) share.guaranteed_ = std::max(uint32_t{1}, target);
  share.slots_->Resize(target - share.balloon_);
  pools_.Charge(share);
  SharePools::Change change = SharePools::ChangeOf(share);
  change.reclaimed = share.chunk_size() * less;
  return change;
}

absl::optional<ElasticShares::Growth> ElasticShares::PlanGrowth(Share& share, uint32_t lacking,
                                                                const SharePools::Opens& opens) {
  const Tier tier = share.tier();
  const Pool pool = share.pool();
  if (!share.is_elastic() || share.target_ >= share.limit_) {
    share.starved_ = false;
    return absl::nullopt;
  }
  // A larger share would take memory from other jobs for which the machine has no pages now.
  if (share.make_later_) return absl::nullopt;
  if (!pools_.jobs().at(share.job())->is_active()) return absl::nullopt;
  Growth growth;
  uint64_t wanted = uint64_t{share.target_} + lacking;
  if (share.by_slot_) {
    // Regions that sessions have not returned yet still exist.
    const uint64_t leaving =
        std::min<uint64_t>(share.leaving_.size(), pools_.limits().device_regions);
    wanted = std::min(wanted, pools_.limits().device_regions - leaving);
  }
  growth.target = share.Reachable(wanted, /*up=*/true);
  if (growth.target <= share.target_) return absl::nullopt;
  const Bytes more = share.chunk_size() * (growth.target - share.target_);
  if (share.keeps_all_ &&
      (more > pools_.Unguaranteed(pool) ||
       growth.target > quotas_.MostSlots(share, Quotas::Counting::kGuaranteed))) {
    return absl::nullopt;
  }
  const Bytes fair_share = FairShare(pool, opens);
  const std::vector<Quotas::Bound> bounds =
      quotas_.BoundsOf(pools_.jobs().at(share.job())->owner());
  Bytes least_fair_share = fair_share;
  for (const Quotas::Bound& bound : bounds) {
    least_fair_share = std::min(least_fair_share, quotas_.FairShareUnder(bound, tier));
  }
  growth.is_guaranteed = growth.target <= share.guaranteed_;
  // On SSD only slots that were never used are reclaimed, so that no job loses anything to another.
  growth.is_entitled = tier == Tier::kSsd || growth.is_guaranteed ||
                       share.chunk_size() * growth.target <=
                           least_fair_share * pools_.jobs().at(share.job())->fair_shares();
  // Others give nothing back for it, or no more.
  if (!growth.is_entitled) share.starved_ = false;
  if (growth.is_entitled && more > pools_.Free(pool)) {
    // On SSD what is reclaimed is free at once. Above it the job waits for victims to leave.
    share.starved_ = tier != Tier::kSsd;
    growth.reclaim =
        Quotas::Reclaim{pool, more, growth.is_guaranteed ? Bytes(0) : fair_share, &share};
  }
  // A guaranteed share counts as lent, so that a quota never withholds it.
  if (!growth.is_entitled || growth.is_guaranteed) return growth;
  for (const Quotas::Bound& bound : bounds) {
    if (growth.target <= quotas_.MostSlots(share, bound, Quotas::Counting::kLent)) continue;
    share.starved_ |= tier != Tier::kSsd;
    const Bytes beyond =
        share.chunk_size() * (growth.target - std::max(share.target_, share.guaranteed_));
    growth.within_quotas.push_back(
        {pool, beyond, quotas_.FairShareUnder(bound, tier), &share, bound});
  }
  return growth;
}

absl::optional<SharePools::Change> ElasticShares::Grow(Share& share, const Growth& growth,
                                                       const SharePools::Opens& opens) {
  const Pool pool = share.pool();
  // Priority for free memory: waiting Opens, then jobs below their fair share, then all others.
  bool others_first = !growth.is_guaranteed && opens.any;
  for (const auto& [id, other] : pools_.jobs()) {
    const Share* const its = other->In(pool);
    // A share that lacks room in its quota alone does not use what is free.
    others_first =
        others_first || (!growth.is_entitled && its != nullptr && its != &share && its->starved() &&
                         quotas_.MostSlots(*its, Quotas::Counting::kLent) > its->target());
  }
  const Bytes free = others_first ? Bytes(0) : pools_.Free(pool);
  const uint64_t permitted =
      std::max<uint64_t>(share.guaranteed_, quotas_.MostSlots(share, Quotas::Counting::kLent));
  const uint64_t most =
      std::min({uint64_t{growth.target}, share.target_ + free / share.chunk_size(), permitted});
  const uint32_t target = share.Reachable(most, /*up=*/false);
  if (target == growth.target) share.starved_ = false;
  if (target <= share.target_) return absl::nullopt;
  return SetTarget(share, target);
}

// The guaranteed share and what is claimed, or, for more than the guaranteed shares of others, the
// fair share.
uint32_t ElasticShares::Floor(const JobShares& job, const Quotas::Reclaim& reclaim,
                              const Demand& demand, bool only_unused) const {
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

SharePools::Changes ElasticShares::ReclaimFromOthers(const Quotas::Reclaim& reclaim,
                                                     const Demands& demands) {
  SharePools::Changes changes;
  // Memory that is still to come from earlier reclaims counts, so that they are not repeated. All
  // jobs are looked through for it, so only after a change.
  Bytes lacking = Lacking(reclaim);
  // Slots that were never used cost nothing, so they go first. Then jobs without sessions give
  // theirs, and then running jobs evict.
  for (const bool only_unused : {true, false}) {
    for (const bool active : {false, true}) {
      for (const auto& [id, job] : pools_.jobs()) {
        const bool is_asked = reclaim.within ? Quotas::IsUnder(*reclaim.within, job->owner())
                                             : job->In(reclaim.pool) != nullptr;
        if (!is_asked) continue;
        Share& share = (*job)[reclaim.pool.tier];
        const bool lends = share.is_elastic() && &share != reclaim.asking &&
                           (active ? job->is_active() : job->state() == JobState::kLingering);
        if (!lends) continue;
        if (lacking.IsZero()) return changes;
        const uint32_t slots = std::min(share.target(), CeilDiv(lacking, share.chunk_size()));
        const auto demand = demands.find(id);
        // Within a quota no fair share is rounded up, as what all have is to be below it.
        Quotas::Reclaim most = reclaim;
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
        if (target == share.target()) continue;
        changes.push_back(SetTarget(share, target));
        lacking = Lacking(reclaim);
      }
    }
  }
  return changes;
}

Bytes ElasticShares::Lacking(const Quotas::Reclaim& reclaim) const {
  if (!reclaim.within)
    return reclaim.needed - std::min(reclaim.needed, pools_.FreeSoon(reclaim.pool));
  const Tier tier = reclaim.pool.tier;
  const Bytes limit = *reclaim.within->quota->most.bytes[static_cast<int>(tier)];
  const Bytes wanted =
      quotas_.UsedOf(*reclaim.within, tier, Quotas::Counting::kSoon) + reclaim.needed;
  return wanted - std::min(wanted, limit);
}

}  // namespace memtide

// What the engine does when the ShareLedger moves memory between jobs.
#include "base/check.h"
#include "daemon/engine/state.h"

namespace memtide {

ShareLedger::Opens EngineState::WaitingOpens(Pool pool) const {
  ShareLedger::Opens opens;
  for (const WaitingOpen& open : opens_) ledger_.Count(open.call, pool, &opens);
  return opens;
}

// What each elastic job must keep: no accepted call may fail for a reclaim. Leases of a device end
// with each step of their client, which then has a smaller budget. But a fetch that is admitted and
// not granted needs its slots beside them.
ShareLedger::Demands EngineState::DemandsOf(Tier tier) const {
  ShareLedger::Demands demands;
  for (const auto& [id, job] : jobs_) {
    if (!job->share(tier).is_elastic()) continue;
    const TierQueues& queues = job->tier(tier);
    const bool needs_pins = tier != Tier::kDevice || queues.admitted.value() > 0;
    demands[id] = {needs_pins ? queues.pinned_chunks() : 0, job->waiting.LargestAt(tier)};
  }
  return demands;
}

void EngineState::Apply(const ShareLedger::Change& change) {
  const auto found = jobs_.find(change.job);
  MEMTIDE_CHECK(found != jobs_.end());
  Job& job = *found->second;
  Bytes& reclaimed = change.tier == Tier::kSsd    ? counters_.ssd_reclaimed
                     : change.tier == Tier::kHost ? counters_.host_reclaimed
                                                  : counters_.device_reclaimed;
  reclaimed += change.reclaimed;
  if (change.tier != Tier::kSsd) SendBudgets(job, change);
  // A share that grows again keeps what a Resize waits for.
  if (change.tier == Tier::kDevice) FinishResize(job);
  ScheduleRoomCheck(job, change.tier);
}

void EngineState::Apply(const ShareLedger::Changes& changes) {
  for (const ShareLedger::Change& change : changes) Apply(change);
}

// Slots that other jobs never used are free as soon as they are reclaimed. Slots in use become free
// later: ServeFreed() then lists a room check, which leads here again.
void EngineState::GrowShare(Job& job, Tier tier, uint32_t lacking, bool may_reclaim) {
  Share& share = job.share(tier);
  const ShareLedger::Opens opens = WaitingOpens(share.pool());
  const absl::optional<ShareLedger::Growth> growth = ledger_.PlanGrowth(share, lacking, opens);
  if (!growth.has_value()) return;
  if (may_reclaim && growth->reclaim.has_value()) {
    Apply(ledger_.ReclaimFromOthers(*growth->reclaim, DemandsOf(tier)));
  }
  for (const ShareLedger::Reclaim& within : growth->within_quotas) {
    if (may_reclaim) Apply(ledger_.ReclaimFromOthers(within, DemandsOf(tier)));
  }
  const absl::optional<ShareLedger::Change> change = ledger_.Grow(share, *growth, opens);
  if (change.has_value()) Apply(*change);
}

bool EngineState::ReclaimForOpen(const OpenCall& open, const Owner& owner) {
  const auto within_quotas = [&](Tier tier) {
    return ledger_.WithinQuotas(owner, ledger_.PoolFor(open, tier),
                                ledger_.NeededToOpen(open, tier));
  };
  // Other jobs give nothing to one that no quota will permit.
  for (const Tier tier : kAllTiers) {
    if (!within_quotas(tier)) return false;
  }
  bool lacks = false;
  for (const Tier tier : kAllTiers) {
    const Pool pool = ledger_.PoolFor(open, tier);
    const Bytes needed = ledger_.NeededToOpen(open, tier);
    const auto within = within_quotas(tier);
    for (const ShareLedger::Reclaim& reclaim : *within) {
      Apply(ledger_.ReclaimFromOthers(reclaim, DemandsOf(tier)));
    }
    if (!within->empty()) {
      lacks = true;
      if (tier == Tier::kSsd && !within_quotas(tier)->empty()) return false;
    }
    if (needed <= ledger_.Free(pool)) continue;
    // Other jobs may retain all of their guaranteed shares.
    if (needed > ledger_.Unguaranteed(pool)) return false;
    Apply(ledger_.ReclaimFromOthers({pool, needed, Bytes(0), nullptr}, DemandsOf(tier)));
    // On SSD no victim leaves, so that waiting would not help. Above it leases end.
    if (tier == Tier::kSsd && needed > ledger_.Free(pool)) return false;
    lacks = true;
  }
  return lacks;
}

void EngineState::On(const SetQuotasCall& event) {
  if (event.number > quotas_number_) {
    quotas_number_ = event.number;
    ledger_.SetQuotas(event.quotas);
    SetBudgets(event.quotas);
    ShrinkOverQuota();
  }
  Answer(event.call);
}

void EngineState::ShrinkOverQuota() {
  if (!ledger_.has_quotas()) return;
  for (const ShareLedger::Reclaim& reclaim : ledger_.OverQuota()) {
    Apply(ledger_.ReclaimFromOthers(reclaim, DemandsOf(reclaim.pool.tier)));
  }
}

// Jobs that wait for memory of others have it first. Were it left for the next job that asks, a job
// above its fair share could take it again and again.
bool EngineState::ServeFreed() {
  const bool freed = ledger_.TakeFreed();
  if (ended_.empty() && !freed) return false;
  // No listed work points at a job any more: Settle() has taken all of it.
  for (const JobId job : ended_) jobs_.erase(job);
  ended_.clear();
  for (const auto& [id, job] : jobs_) {
    for (const Tier tier : kMemoryTiers) {
      if (!job->share(tier).starved()) continue;
      // What it gets now may be less than what it waits for: then it goes on waiting.
      const size_t waiting = job->tier(tier).slot_queue.size();
      const size_t free = job->share(tier).slots().spare_slots();
      const auto lacking = static_cast<uint32_t>(waiting > free ? waiting - free : 1);
      if (job->contents == nullptr) GrowShare(*job, tier, lacking, /*may_reclaim=*/false);
      ScheduleRoomCheck(*job, tier);
    }
  }
  OpenWaiting();
  return true;
}

}  // namespace memtide

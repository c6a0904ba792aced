// Memory acts on the changes by which the ShareLedger moves memory between jobs.
#include <algorithm>

#include "base/check.h"
#include "daemon/engine/memory/memory.h"

namespace memtide {

ShareLedger::Opens Memory::WaitingOpens(Pool pool) const {
  ShareLedger::Opens opens;
  for (const WaitingOpen& open : core_.opens) core_.ledger.Count(open.call, pool, &opens);
  return opens;
}

// An elastic job keeps what it demands: no accepted call may fail for a reclaim. Leases of a device
// end with each step of their client, which then has a smaller budget. But a fetch that is admitted
// and not granted needs its slots beside them.
ShareLedger::Demands Memory::DemandsOf(Tier tier) const {
  ShareLedger::Demands demands;
  for (const auto& [id, job] : core_.jobs) {
    if (!job->share(tier).is_elastic()) continue;
    const TierQueues& queues = job->tier(tier);
    const bool needs_pins = tier != Tier::kDevice || queues.admitted.value() > 0;
    demands[id] = {needs_pins ? queues.pinned_chunks() : 0, job->waiting.LargestAt(tier)};
  }
  return demands;
}

void Memory::Apply(const ShareLedger::Change& change) {
  Job* const found = core_.FindJob(change.job);
  MEMTIDE_CHECK(found != nullptr);
  Job& job = *found;
  Bytes& reclaimed = change.tier == Tier::kSsd    ? core_.counters.ssd_reclaimed
                     : change.tier == Tier::kHost ? core_.counters.host_reclaimed
                                                  : core_.counters.device_reclaimed;
  reclaimed += change.reclaimed;
  if (change.tier != Tier::kSsd) SendBudgets(job, change);
  // A share that grows again keeps what a Resize waits for.
  if (change.tier == Tier::kDevice) FinishResize(job);
  core_.ScheduleRoomCheck(job, change.tier);
}

void Memory::Apply(const ShareLedger::Changes& changes) {
  for (const ShareLedger::Change& change : changes) Apply(change);
}

// Slots that other jobs never used are free as soon as they are reclaimed. Slots in use become free
// later: ServeFreed() then lists a room check, which leads here again.
void Memory::GrowShare(Job& job, Tier tier, uint32_t lacking, bool may_reclaim) {
  Share& share = job.share(tier);
  const ShareLedger::Opens opens = WaitingOpens(share.pool());
  const absl::optional<ShareLedger::Growth> growth =
      core_.ledger.elastic().PlanGrowth(share, lacking, opens);
  if (!growth.has_value()) return;
  if (may_reclaim && growth->reclaim.has_value()) {
    Apply(core_.ledger.elastic().ReclaimFromOthers(*growth->reclaim, DemandsOf(tier)));
  }
  for (const ShareLedger::Reclaim& within : growth->within_quotas) {
    if (may_reclaim) Apply(core_.ledger.elastic().ReclaimFromOthers(within, DemandsOf(tier)));
  }
  const absl::optional<ShareLedger::Change> change =
      core_.ledger.elastic().Grow(share, *growth, opens);
  if (change.has_value()) Apply(*change);
}

bool Memory::ReclaimForOpen(const OpenCall& open, const Owner& owner) {
  const auto within_quotas = [&](Tier tier) {
    return core_.ledger.quotas().WithinQuotas(owner, core_.ledger.pools().PoolFor(open, tier),
                                              core_.ledger.NeededToOpen(open, tier));
  };
  // Other jobs give nothing to one that no quota will permit.
  for (const Tier tier : kAllTiers) {
    if (!within_quotas(tier)) return false;
  }
  bool lacks = false;
  for (const Tier tier : kAllTiers) {
    const Pool pool = core_.ledger.pools().PoolFor(open, tier);
    const Bytes needed = core_.ledger.NeededToOpen(open, tier);
    const auto within = within_quotas(tier);
    for (const ShareLedger::Reclaim& reclaim : *within) {
      Apply(core_.ledger.elastic().ReclaimFromOthers(reclaim, DemandsOf(tier)));
    }
    if (!within->empty()) {
      lacks = true;
      if (tier == Tier::kSsd && !within_quotas(tier)->empty()) return false;
    }
    if (needed <= core_.ledger.pools().Free(pool)) continue;
    // Other jobs may retain all of their guaranteed shares.
    if (needed > core_.ledger.pools().Unguaranteed(pool)) return false;
    Apply(core_.ledger.elastic().ReclaimFromOthers({pool, needed, Bytes(0), nullptr},
                                                   DemandsOf(tier)));
    // On SSD no victim leaves, so that waiting would not help. Above it leases end.
    if (tier == Tier::kSsd && needed > core_.ledger.pools().Free(pool)) return false;
    lacks = true;
  }
  return lacks;
}

void Memory::ShrinkOverQuota() {
  if (!core_.ledger.quotas().has_quotas()) return;
  for (const ShareLedger::Reclaim& reclaim : core_.ledger.quotas().OverQuota()) {
    Apply(core_.ledger.elastic().ReclaimFromOthers(reclaim, DemandsOf(reclaim.pool.tier)));
  }
}

// Jobs that wait for memory of others have it first. Were it left for the next job that asks, a job
// above its fair share could take it again and again.
bool Memory::ServeFreed() {
  const bool freed = core_.ledger.pools().TakeFreed();
  if (ended_.empty() && !freed) return false;
  // No listed work points at a job any more: Settle() has taken all of it.
  for (const JobId job : ended_) core_.jobs.erase(job);
  ended_.clear();
  for (const auto& [id, job] : core_.jobs) {
    for (const Tier tier : kMemoryTiers) {
      if (!job->share(tier).starved()) continue;
      // The job may get fewer slots now than it waits for: then it goes on waiting.
      const size_t waiting = job->tier(tier).slot_queue.size();
      const size_t free = job->share(tier).slots().spare_slots();
      const auto lacking = static_cast<uint32_t>(waiting > free ? waiting - free : 1);
      if (job->contents == nullptr) GrowShare(*job, tier, lacking, /*may_reclaim=*/false);
      core_.ScheduleRoomCheck(*job, tier);
    }
  }
  return true;
}

// Leases are held at the lease tier, so a host pool behind a device changes no budget.
void Memory::SendBudgets(const Job& job, const ShareLedger::Change& change) {
  if (job.lease_tier != change.tier) return;
  // The budget of a fixed device share is that of its Open or Resize.
  if (change.tier == Tier::kDevice && !job.share(change.tier).is_elastic()) return;
  for (const SessionId session : job.sessions) {
    // AnswerOpen() will send the budget of that time.
    if (core_.sessions.Find(session)->opening) continue;
    SendBudget(session, change.slots, change.most_slots);
  }
}

void Memory::SendBudget(SessionId session, uint32_t slots, uint32_t most_slots) {
  const Job& job = *core_.sessions.Find(session)->job;
  // In host memory, chunks whose content is common are leased beside those that need the job's
  // slots. Duplicates are not counted, as they are about to be written.
  const uint32_t duplicates = std::min(job.common.value(), job.duplicated.readers());
  const uint32_t common = job.lease_tier == Tier::kHost ? job.common.value() - duplicates : 0;
  core_.Emit(SendLeaseBudget{session, slots + common, job.LeaseBudgetOf(slots) + common,
                             job.LeaseBudgetOf(most_slots)});
}

}  // namespace memtide

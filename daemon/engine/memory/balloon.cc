// The balloon of the host pool: host slots whose pages the machine has while it is short of memory.
//
// The budget is PatrickStar's (capacity, less what the process itself needs now and next, less a
// reserve), applied to the whole machine, which also runs other programs. While the machine has
// less memory than the reserve, the balloons of all jobs inflate, each in proportion to the slots
// that its job can do without. The balloon of a job also inflates for the rise of its sessions' own
// memory that its last iteration predicts; the first one is taken to need all of a limit. Inflating
// works as the shrinking of a device share (memory/resize.cc): victims leave, and the pages of free
// slots go to the machine. A balloon deflates slot by slot on demand, once the machine has had more
// memory than it needs for some time. No lease ends for the balloon and no call is refused for it:
// where waiting chunks find no room and no victim is left, the balloon deflates at once by as many
// slots as are needed to go on. Step parts that a client submits together then run one by one
// (TryAdmit).
//
// Only chunks whose home is on SSD can leave, so that other jobs have no balloon.
#include <algorithm>

#include "daemon/engine/memory/memory.h"

namespace memtide {

namespace {

// Clamp: anything larger means "plenty", and sums cannot overflow.
constexpr Bytes kEnough = GiB(uint64_t{1} << 20);

}  // namespace

void Memory::On(const HostMemory& event) {
  const Bytes reserve = core_.options.host_reserve;
  // Without a reserve there is no balloon.
  if (reserve.IsZero()) return;
  ShareLedger::Rises rises;
  for (const auto& [id, job] : core_.jobs) {
    const OwnHost& own = job->own_host;
    Bytes rise = std::max(own.now, own.predicted) - own.now;
    // No iteration has ended, so that nothing predicts the rise, which may be faster than chunks
    // leave.
    if (own.predicted.IsZero()) rise = event.limit;
    // Capped at the pool, because sessions may report any size.
    // The job has one report, that of the session that sent the last one. All of its sessions are
    // taken to be alike.
    rises[id] = std::min(rise, core_.ledger.pools().capacity({Tier::kHost})) * job->sessions.size();
  }
  Apply(
      core_.ledger.balloons().BalanceBalloons(std::min(event.available, kEnough), reserve, rises));
  const bool balloon = std::any_of(core_.jobs.begin(), core_.jobs.end(), [](const auto& entry) {
    return entry.second->share(Tier::kHost).balloon() > 0;
  });
  // The log has the beginning and the end of a shortage only.
  if (balloon == machine_short_) return;
  machine_short_ = balloon;
  core_.Emit(MachineShort{balloon, event.available, reserve});
}

void Memory::ReleaseSurplusSlots(Job& job, Tier tier) {
  if (job.state() == JobState::kEnding) return;
  Share& share = job.share(tier);
  while (share.slots().surplus_slots() > 0 && share.slots().free_slots() > 0) {
    const SlotNumber slot = core_.ledger.balloons().ReleaseSlot(share);
    // Without a balloon the slot goes to another job.
    if (share.balloon() > 0) core_.counters.balloon += job.chunk_size;
    core_.Emit(ReleaseSlot{share.PlaceOf(slot), job.chunk_size, job.id});
  }
}

void Memory::DeflateForWaiting(Job& job, Tier tier) {
  const TierQueues& queues = job.tier(tier);
  const absl::optional<ShareLedger::Change> change = core_.ledger.balloons().DeflateFor(
      job.share(tier), queues.slot_queue.size(), queues.evicting.value());
  if (change.has_value()) Apply(*change);
}

void Memory::PopulateNextSlot(Job& job) {
  Share& share = job.share(Tier::kHost);
  const absl::optional<SlotNumber> slot = core_.ledger.balloons().PopulateSlot(share);
  if (slot.has_value()) core_.Emit(PopulateSlot{share.PlaceOf(*slot), job.chunk_size, job.id});
}

void Memory::On(const SlotReleased& event) {
  const auto found = core_.segments.find(event.place.region.value());
  if (found == core_.segments.end()) return;
  Job& job = *found->second;
  Share& share = job.share(Tier::kHost);
  core_.ledger.balloons().SlotReleased(share, share.NumberOf(event.place));
  if (job.state() == JobState::kEnding) return MaybeDropMemory(job);
  core_.ScheduleRoomCheck(job, Tier::kHost);
  if (job.waits_to_claim()) core_.work.Send(AllocationsPossible{job.id});
}

void Memory::On(const SlotPopulated& event) {
  const auto found = core_.segments.find(event.place.region.value());
  if (found == core_.segments.end()) return;
  Job& job = *found->second;
  Share& share = job.share(Tier::kHost);
  const SlotNumber slot = share.NumberOf(event.place);
  if (event.status.ok()) {
    core_.ledger.balloons().SlotPopulated(share, slot);
  } else {
    // Not Apply(): a room check now would populate the slot again, without end.
    const ShareLedger::Change smaller = core_.ledger.balloons().PopulateFailed(share, slot);
    SendBudgets(job, smaller);
    job.last_error = event.status;
  }
  if (job.state() == JobState::kEnding) return MaybeDropMemory(job);
  // Where the machine has no memory, victims make room for the waiting chunks instead. Without a
  // victim, the next Tick tries again.
  const bool has_victim = job.tier(Tier::kHost).victims.size() > 0;
  if (event.status.ok() || has_victim) core_.ScheduleRoomCheck(job, Tier::kHost);
  if (job.waits_to_claim()) core_.work.Send(AllocationsPossible{job.id});
}

}  // namespace memtide

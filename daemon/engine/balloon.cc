// The balloon of the host pool: host slots whose pages the machine has while it is short of memory.
//
// The budget is PatrickStar's (capacity, less what the process itself needs now and next, less a
// reserve), applied to the whole machine, which also runs other programs. While the machine has
// less memory than the reserve, the balloons of all jobs inflate, each in proportion to the slots
// that its job can do without. The balloon of a job also inflates for the rise of its sessions' own
// memory that its last iteration predicts. Inflating works as the shrinking of a device share
// (resize.cc): victims leave, and the pages of free slots go to the machine. A balloon deflates
// slot by slot on demand, once the machine has had more memory than it needs for some time. No
// lease ends for the balloon and no call is refused for it: where waiting chunks find no room and
// no victim is left, the balloon deflates at once by as many slots as are needed to go on. Step
// parts that a client submits together then run one by one (TryAdmit).
//
// Only chunks whose home is on SSD can leave, so that other jobs have no balloon.
#include <algorithm>
#include <cmath>

#include "daemon/engine/state.h"

namespace memtide {

namespace {

// A job retains one slot in this many. With fewer, it would read each chunk for each use.
constexpr uint32_t kRetainedPart = 4;
// A balloon deflates only when the reserve is exceeded by half of it, or by this much, so that it
// does not follow every allocation of other programs.
constexpr Bytes kMostSlack = MiB(512);
// Clamp: anything larger means "plenty", and sums cannot overflow.
constexpr Bytes kEnough = GiB(uint64_t{1} << 20);

uint32_t CeilDiv(Bytes a, Bytes b) {
  return static_cast<uint32_t>(a / b + (a.IsMultipleOf(b) ? 0 : 1));
}

// Slots whose pages will soon be released.
uint32_t Going(const TierShare& share) {
  return share.slots->surplus_slots() + share.slots->unbacked_slots() - share.slots->gone_slots() -
         share.deflating;
}

// Slots whose pages are populated again on demand.
uint32_t Coming(const TierShare& share) {
  return std::min(share.slots->missing_slots(), share.slots->gone_slots() + share.deflating);
}

}  // namespace

uint32_t EngineState::Inflatable(const Job& job) const {
  const TierShare& share = job.tier(Tier::kHost);
  const bool runs = job.state == Job::State::kRunning || job.state == Job::State::kLingering;
  if (!runs || !share.exists() || job.home != Tier::kSsd) return 0;
  const uint32_t kept = std::max(kMinSlots, share.slots_with_balloon() / kRetainedPart);
  return std::max(kept, std::min(share.slots->size(), share.slots->backed_slots())) - kept;
}

void EngineState::On(const HostMemory& event) {
  if (options_.host_reserve.IsZero()) return;
  Bytes available = std::min(event.available, kEnough);
  Bytes coming;
  for (const auto& [id, job] : jobs_) {
    const TierShare& share = job->tier(Tier::kHost);
    if (!share.exists()) continue;
    available += job->chunk_size * Going(share);
    coming += job->chunk_size * Coming(share);
  }
  available -= std::min(available, coming);
  InflateForReserve(&available);
  bool balloon = false;
  for (const auto& [id, job] : jobs_) {
    AdjustBalloon(*job, &available);
    balloon = balloon || job->tier(Tier::kHost).balloon > 0;
  }
  if (balloon == machine_short_) return;
  machine_short_ = balloon;
  Emit(MachineShort{balloon, event.available, options_.host_reserve});
}

// Divides the missing part of the reserve in proportion to the slots that each job can do without.
void EngineState::InflateForReserve(Bytes* available) {
  const Bytes reserve = options_.host_reserve;
  Bytes spareable;
  for (const auto& [id, job] : jobs_) spareable += job->chunk_size * Inflatable(*job);
  if (*available >= reserve || spareable.IsZero()) return;
  const double fraction =
      std::min(1.0, static_cast<double>((reserve - *available).count()) / spareable.count());
  for (const auto& [id, job] : jobs_) {
    const uint32_t slots = static_cast<uint32_t>(std::ceil(fraction * Inflatable(*job)));
    *available += job->chunk_size * slots;
    Inflate(*job, slots);
  }
}

// Inflates for the predicted rise of the sessions' own memory. A reported size affects only the job
// of the reporter, capped at the pool, so that no client can evict the chunks of others by lying.
void EngineState::AdjustBalloon(Job& job, Bytes* available) {
  const Bytes reserve = options_.host_reserve;
  const Bytes rise = std::max(job.own_host, job.own_host_predicted) - job.own_host;
  const Bytes wanted =
      reserve + std::min(rise, capacity_[static_cast<int>(Tier::kHost)]) * job.sessions.size();
  const Bytes enough = wanted + std::min(Bytes(reserve.count() / 2), kMostSlack);
  if (*available < wanted) {
    const uint32_t slots = std::min(Inflatable(job), CeilDiv(wanted - *available, job.chunk_size));
    *available += job.chunk_size * slots;
    Inflate(job, slots);
  } else if (*available > enough) {
    const uint64_t slots =
        std::min<uint64_t>(job.tier(Tier::kHost).balloon, (*available - enough) / job.chunk_size);
    *available -= job.chunk_size * slots;
    Deflate(job, static_cast<uint32_t>(slots));
  }
}

void EngineState::Inflate(Job& job, uint32_t slots) {
  if (slots == 0) return;
  TierShare& share = job.tier(Tier::kHost);
  const uint32_t most = share.slots_with_balloon();
  share.slots->Resize(std::min(share.slots->size(), share.slots->backed_slots()) - slots);
  share.balloon = most - share.slots->size();
  SendBudgets(job);
  ScheduleRoomCheck(job, Tier::kHost);
}

void EngineState::Deflate(Job& job, uint32_t slots) {
  if (slots == 0) return;
  TierShare& share = job.tier(Tier::kHost);
  share.slots->Resize(share.slots->size() + slots);
  share.balloon -= slots;
  SendBudgets(job);
  ScheduleRoomCheck(job, Tier::kHost);
}

void EngineState::SendBudgets(const Job& job) {
  if (job.work != Tier::kHost) return;
  for (const SessionId session : job.sessions) {
    if (!sessions_.Find(session)->opening) SendBudget(job, session);
  }
}

void EngineState::SendBudget(const Job& job, SessionId session) {
  const TierShare& work = job.tier(job.work);
  const uint32_t most = std::max(work.slots_with_balloon(), work.guaranteed);
  Emit(SendLeaseBudget{session, work.slots->size(), job.LeaseBudget(), Job::LeaseBudgetOf(most)});
}

void EngineState::ReleaseSurplusSlots(Job& job, Tier tier) {
  TierShare& share = job.tier(tier);
  if (tier != Tier::kHost || job.home != Tier::kSsd || job.state == Job::State::kEnding) return;
  while (share.slots->surplus_slots() > 0 && share.slots->free_slots() > 0) {
    const uint32_t number = share.slots->Unback(share.slots->Take());
    ++job.segments_pending;
    if (share.balloon > 0) counters_.balloon += job.chunk_size;
    Emit(ReleaseSlot{PlaceOfSlot(job, tier, number), job.chunk_size});
  }
}

void EngineState::DeflateForWaiting(Job& job, Tier tier) {
  TierShare& share = job.tier(tier);
  const size_t there = share.slots->spare_slots() + share.evicting.value();
  if (share.balloon == 0 || share.slot_queue.size() <= there) return;
  const size_t lacking = share.slot_queue.size() - there;
  const uint32_t backed = share.slots->backed_slots();
  // Stops releasing slots that have pages, and populates one for each waiting chunk.
  uint64_t wanted = backed + lacking;
  if (share.slots->unbacked_slots() == 0) {
    wanted = std::max<uint64_t>(wanted, backed + share.next_segment_slots());
  }
  const uint32_t slots =
      static_cast<uint32_t>(std::min<uint64_t>(wanted, share.slots_with_balloon()));
  if (slots <= share.slots->size()) return;
  Deflate(job, slots - share.slots->size());
}

void EngineState::PopulateNextSlot(Job& job) {
  TierShare& share = job.tier(Tier::kHost);
  if (share.deflating || share.slots->gone_slots() == 0) return;
  share.deflating = true;
  ++job.segments_pending;
  const uint32_t number = share.slots->TakeGone();
  Emit(PopulateSlot{PlaceOfSlot(job, Tier::kHost, number), job.chunk_size});
}

void EngineState::On(const SlotReleased& event) {
  const auto found = segments_.find(event.place.region.value());
  if (found == segments_.end()) return;
  Job& job = *found->second;
  --job.segments_pending;
  job.tier(Tier::kHost).slots->Gone(NumberOf(job, event.place));
  if (job.tier(Tier::kHost).is_elastic()) Charge(job, Tier::kHost);
  if (job.state == Job::State::kEnding) return MaybeDropMemory(job);
  ScheduleRoomCheck(job, Tier::kHost);
}

void EngineState::On(const SlotPopulated& event) {
  const auto found = segments_.find(event.place.region.value());
  if (found == segments_.end()) return;
  Job& job = *found->second;
  TierShare& share = job.tier(Tier::kHost);
  --job.segments_pending;
  share.deflating = false;
  const uint32_t number = NumberOf(job, event.place);
  if (event.status.ok()) {
    share.slots->Returned(number);
  } else {
    share.slots->Gone(number);
    job.last_error = event.status;
  }
  if (share.is_elastic()) Charge(job, Tier::kHost);
  if (job.state == Job::State::kEnding) return MaybeDropMemory(job);
  if (event.status.ok()) return ScheduleRoomCheck(job, Tier::kHost);
  // Victims make room for the waiting chunks instead. Without a victim, the next Tick tries again.
  const uint32_t missing = share.slots->missing_slots();
  share.slots->Resize(share.slots->size() - missing);
  share.balloon += missing;
  if (share.victims.size() > 0) ScheduleRoomCheck(job, Tier::kHost);
}

MemoryPlace EngineState::PlaceOfSlot(const Job& job, Tier tier, uint32_t number) const {
  const TierShare& share = job.tier(tier);
  return {RegionId(share.segments[number / share.slots_per_segment]),
          job.chunk_size * (number % share.slots_per_segment)};
}

uint32_t EngineState::NumberOf(const Job& job, const MemoryPlace& place) const {
  const TierShare& share = job.tier(Tier::kHost);
  const auto region = std::find(share.segments.begin(), share.segments.end(), place.region.value());
  return static_cast<uint32_t>(region - share.segments.begin()) * share.slots_per_segment +
         static_cast<uint32_t>(place.offset / job.chunk_size);
}

}  // namespace memtide

// The budget of the host pool: what programs leave of the machine's memory.
//
// PatrickStar's budget (capacity, less what the process itself needs now and next, less a reserve),
// of the whole machine, whose programs are not all ours. While it has less than the reserve, jobs
// spare host slots, each in proportion to what it can spare; and each job spares its own for the
// rise of its sessions' own memory that its last iteration foretells. Slots are withheld as a share
// of the device shrinks (resize.cc): victims leave, and the memory of free slots goes to the
// machine. It comes back slot by slot when it is needed, after the machine has had more than enough
// for it. Nothing that is leased leaves, and no call is refused for it: where chunks that are
// waited for find no room, and nobody can leave, what is withheld comes back at once, as much as is
// needed to go on. So parts of an optimizer's step, several of which are asked for at once, then go
// one by one (TryAdmit).
//
// Only where chunks can go to SSD, their home.
#include <algorithm>
#include <cmath>

#include "daemon/engine/state.h"

namespace memtide {

namespace {

// A job keeps this part of its host slots: with less, each chunk would be read for each use.
constexpr uint32_t kKeptPart = 4;
// Memory is returned only when the reserve is exceeded by half of it, so that it does not go and
// come with every allocation of some program; or by this.
constexpr Bytes kMostSlack = MiB(512);
// More is as good, and sums of it are numbers still.
constexpr Bytes kEnough = GiB(uint64_t{1} << 20);

uint32_t CeilDiv(Bytes a, Bytes b) {
  return static_cast<uint32_t>(a / b + (a.IsMultipleOf(b) ? 0 : 1));
}

// Slots whose memory goes to the machine, soon.
uint32_t Going(const JobTier& part) {
  return part.slots->surplus_slots() + part.slots->unbacked_slots() - part.slots->gone_slots() -
         part.filling;
}

// Slots whose memory comes back when it is needed.
uint32_t Coming(const JobTier& part) {
  return std::min(part.slots->missing_slots(), part.slots->gone_slots() + part.filling);
}

}  // namespace

uint32_t EngineState::Spareable(const Job& job) const {
  const JobTier& part = job.tier(Tier::kHost);
  const bool runs = job.state == Job::State::kRunning || job.state == Job::State::kLingering;
  if (!runs || !part.exists() || job.home != Tier::kSsd) return 0;
  const uint32_t kept = std::max(kMinSlots, part.most_slots() / kKeptPart);
  return std::max(kept, std::min(part.slots->size(), part.slots->backed_slots())) - kept;
}

void EngineState::On(const HostMemory& event) {
  if (options_.host_reserve.IsZero()) return;
  Bytes available = std::min(event.available, kEnough);
  Bytes coming;
  for (const auto& [id, job] : jobs_) {
    const JobTier& part = job->tier(Tier::kHost);
    if (!part.exists()) continue;
    available += job->chunk_size * Going(part);
    coming += job->chunk_size * Coming(part);
  }
  available -= std::min(available, coming);
  SpareTogether(&available);
  bool withheld = false;
  for (const auto& [id, job] : jobs_) {
    SpareOrReturn(*job, &available);
    withheld = withheld || job->tier(Tier::kHost).withheld > 0;
  }
  if (withheld == machine_short_) return;
  machine_short_ = withheld;
  Emit(MachineShort{withheld, event.available, options_.host_reserve});
}

// What lacks of the reserve, in proportion to what each can spare.
void EngineState::SpareTogether(Bytes* available) {
  const Bytes reserve = options_.host_reserve;
  Bytes spareable;
  for (const auto& [id, job] : jobs_) spareable += job->chunk_size * Spareable(*job);
  if (*available >= reserve || spareable.IsZero()) return;
  const double fraction =
      std::min(1.0, static_cast<double>((reserve - *available).count()) / spareable.count());
  for (const auto& [id, job] : jobs_) {
    const uint32_t slots = static_cast<uint32_t>(std::ceil(fraction * Spareable(*job)));
    *available += job->chunk_size * slots;
    Withhold(*job, slots);
  }
}

// For what its own sessions are about to need: what is only told counts for the teller alone, and
// for no more than the pool.
void EngineState::SpareOrReturn(Job& job, Bytes* available) {
  const Bytes reserve = options_.host_reserve;
  const Bytes rise = std::max(job.own_host, job.own_host_foreseen) - job.own_host;
  const Bytes wanted =
      reserve + std::min(rise, capacity_[static_cast<int>(Tier::kHost)]) * job.sessions.size();
  const Bytes enough = wanted + std::min(Bytes(reserve.count() / 2), kMostSlack);
  if (*available < wanted) {
    const uint32_t slots = std::min(Spareable(job), CeilDiv(wanted - *available, job.chunk_size));
    *available += job.chunk_size * slots;
    Withhold(job, slots);
  } else if (*available > enough) {
    const uint64_t slots =
        std::min<uint64_t>(job.tier(Tier::kHost).withheld, (*available - enough) / job.chunk_size);
    *available -= job.chunk_size * slots;
    Return(job, static_cast<uint32_t>(slots));
  }
}

void EngineState::Withhold(Job& job, uint32_t slots) {
  if (slots == 0) return;
  JobTier& part = job.tier(Tier::kHost);
  const uint32_t most = part.most_slots();
  part.slots->Resize(std::min(part.slots->size(), part.slots->backed_slots()) - slots);
  part.withheld = most - part.slots->size();
  SendBudgets(job);
  LookAtRoom(job, Tier::kHost);
}

void EngineState::Return(Job& job, uint32_t slots) {
  if (slots == 0) return;
  JobTier& part = job.tier(Tier::kHost);
  part.slots->Resize(part.slots->size() + slots);
  part.withheld -= slots;
  SendBudgets(job);
  LookAtRoom(job, Tier::kHost);
}

void EngineState::SendBudgets(const Job& job) {
  if (job.work != Tier::kHost) return;
  for (const SessionId session : job.sessions) {
    if (!FindSession(session)->opening) SendBudget(job, session);
  }
}

void EngineState::SendBudget(const Job& job, SessionId session) {
  const JobTier& work = job.tier(job.work);
  const uint32_t most = std::max(work.most_slots(), work.claim);
  Emit(SendLeaseBudget{session, job.LeaseBudget(), Job::LeaseBudgetOf(most)});
}

void EngineState::EmptyWithheld(Job& job, Tier tier) {
  JobTier& part = job.tier(tier);
  if (tier != Tier::kHost || job.home != Tier::kSsd || job.state == Job::State::kEnding) return;
  while (part.slots->surplus_slots() > 0 && part.slots->free_slots() > 0) {
    const uint32_t number = part.slots->Unback(part.slots->Take());
    ++job.parts_pending;
    if (part.withheld > 0) counters_.withheld += job.chunk_size;
    Emit(EmptySlot{PlaceOfSlot(job, tier, number), job.chunk_size});
  }
}

void EngineState::TakeWithheld(Job& job, Tier tier) {
  JobTier& part = job.tier(tier);
  const size_t there = part.slots->spare_slots() + part.pushing;
  if (part.withheld == 0 || part.slot_queue.size() <= there) return;
  const size_t lacking = part.slot_queue.size() - there;
  const uint32_t backed = part.slots->backed_slots();
  // No more of the slots that are there go, and so many come that wait for it.
  uint64_t wanted = backed + lacking;
  if (part.slots->unbacked_slots() == 0) {
    wanted = std::max<uint64_t>(wanted, backed + part.next_part());
  }
  const uint32_t slots = static_cast<uint32_t>(std::min<uint64_t>(wanted, part.most_slots()));
  if (slots <= part.slots->size()) return;
  Return(job, slots - part.slots->size());
}

void EngineState::FillSlotOf(Job& job) {
  JobTier& part = job.tier(Tier::kHost);
  if (part.filling || part.slots->gone_slots() == 0) return;
  part.filling = true;
  ++job.parts_pending;
  const uint32_t number = part.slots->TakeGone();
  Emit(FillSlot{PlaceOfSlot(job, Tier::kHost, number), job.chunk_size});
}

void EngineState::On(const SlotEmptied& event) {
  const auto found = parts_.find(event.place.region.value());
  if (found == parts_.end()) return;
  Job& job = *found->second;
  --job.parts_pending;
  job.tier(Tier::kHost).slots->Gone(NumberOf(job, event.place));
  if (job.tier(Tier::kHost).is_elastic()) Charge(job, Tier::kHost);
  if (job.state == Job::State::kEnding) return MaybeDropMemory(job);
  LookAtRoom(job, Tier::kHost);
}

void EngineState::On(const SlotFilled& event) {
  const auto found = parts_.find(event.place.region.value());
  if (found == parts_.end()) return;
  Job& job = *found->second;
  JobTier& part = job.tier(Tier::kHost);
  --job.parts_pending;
  part.filling = false;
  const uint32_t number = NumberOf(job, event.place);
  if (event.status.ok()) {
    part.slots->Returned(number);
  } else {
    part.slots->Gone(number);
    job.last_error = event.status;
  }
  if (part.is_elastic()) Charge(job, Tier::kHost);
  if (job.state == Job::State::kEnding) return MaybeDropMemory(job);
  if (event.status.ok()) return LookAtRoom(job, Tier::kHost);
  // Others leave for those that wait. If nobody can, it is tried again with the next tick.
  const uint32_t missing = part.slots->missing_slots();
  part.slots->Resize(part.slots->size() - missing);
  part.withheld += missing;
  if (part.victims.size() > 0) LookAtRoom(job, Tier::kHost);
}

MemoryPlace EngineState::PlaceOfSlot(const Job& job, Tier tier, uint32_t number) const {
  const JobTier& part = job.tier(tier);
  return {RegionId(part.parts[number / part.slots_per_part]),
          job.chunk_size * (number % part.slots_per_part)};
}

uint32_t EngineState::NumberOf(const Job& job, const MemoryPlace& place) const {
  const JobTier& part = job.tier(Tier::kHost);
  const auto region = std::find(part.parts.begin(), part.parts.end(), place.region.value());
  return static_cast<uint32_t>(region - part.parts.begin()) * part.slots_per_part +
         static_cast<uint32_t>(place.offset / job.chunk_size);
}

}  // namespace memtide

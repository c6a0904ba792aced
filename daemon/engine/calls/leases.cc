// Leases: calls enter, are granted or fail, and leases end.
#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "base/check.h"
#include "daemon/engine/calls/calls.h"
#include "daemon/engine/residency/copies.h"

namespace memtide {

void Calls::UnpinChunk(ChunkIndex index, size_t pin_index) {
  Chunk& chunk = core_.chunks[index];
  Uses& uses = uses_[index];
  uses.pins.erase(uses.pins.begin() + pin_index);
  core_.MarkDirty(index);
  if (!chunk.pinned()) {
    uses.revoke_sent = false;
    victims_.Update(index);
    core_.ScheduleChunk(index);
    if (chunk.repeats_offer) core_.work.Send(ChunkUnpinned{core_.IdOf(index)});
  }
  // A conflict may have ended even while other pins remain.
  core_.PinsChanged(index);
  core_.ScheduleRoomCheck(*chunk.job, Tier::kDevice);
  core_.ScheduleRoomCheck(*chunk.job, Tier::kHost);
}

// The call counts for its session, job and user, and has a deadline from now on.
void Calls::Register(Session& session, PendingCall& call, Duration deadline) {
  Job& job = *session.job;
  const uint32_t chunks = static_cast<uint32_t>(call.chunks.size());
  call.owner = session.id;
  call.job = &job;
  call.deadline = core_.DeadlineIn(deadline);
  call.of_session = session.waiting_calls.Take();
  call.of_job = job.waiting_calls.Take();
  call.of_user = session.user->waiting_calls.Take();
  call.chunks_of_job = job.waiting_chunks.Take(chunks);
  call.chunks_of_user = session.user->waiting_chunks.Take(chunks);
  deadlines_.emplace(call.deadline, call.call);
}

// Proceed() and Fail() end a call that is in the tables, so it enters them before it is tried.
Verdict Calls::Enter(Session& session, std::unique_ptr<Waiter> waiter, Duration deadline) {
  Waiter& entered = *waiter;
  entered.started = core_.now;
  Register(session, entered, deadline);
  session.waiters.push_back(&entered);
  waiters_.emplace(entered.call, std::move(waiter));
  return TryAdmit(entered, /*may_take_room=*/true);
}

void Calls::Wait(Session& session, const FetchCall& event, std::vector<ChunkIndex> chunks,
                 std::vector<Home> homes) {
  auto made = std::make_unique<Waiter>();
  Waiter& waiter = *made;
  waiter.call = event.call;
  waiter.session = session.id;
  waiter.tier = event.tier;
  waiter.chunks = std::move(chunks);
  waiter.first_written = event.access == Access::kWrite ? 0 : waiter.chunks.size();
  waiter.homes = std::move(homes);
  const Verdict verdict = Enter(session, std::move(made), event.deadline);
  if (waiter.admitted && waiter.missing == 0) {
    ++core_.counters.fetch_hits;
    return Proceed(waiter);
  }
  if (!event.wait) {
    return Fail(waiter, verdict.admission == Admission::kConflict
                            ? absl::AbortedError("another session holds a lease that excludes this")
                            : absl::UnavailableError("not every chunk is there now"));
  }
  if (!waiter.admitted) WaitOrFail(waiter, verdict);
}

void Calls::Leave(Waiter& waiter) {
  std::vector<Waiter*>& waiters = core_.sessions.Find(waiter.owner)->waiters;
  waiters.erase(std::find(waiters.begin(), waiters.end(), &waiter));
  deadlines_.erase({waiter.deadline, waiter.call});
  Job& job = *waiter.job;
  const bool has_homes = !waiter.homes.empty();
  waiters_.erase(waiter.call);
  if (has_homes) core_.HomesFreed(job);  // Homes that it did not need are free.
}

void Calls::ProceedWaiters(ChunkIndex index) {
  std::vector<Waiter*> waiters;
  waiters.swap(uses_[index].waiters);
  for (Waiter* waiter : waiters) {
    if (--waiter->missing == 0) Proceed(*waiter);
  }
}

void Calls::Proceed(Waiter& waiter) {
  std::visit([&](const auto& then) { Proceed(waiter, then); }, waiter.then);
}

void Calls::Proceed(Waiter& waiter, const GrantLeases&) {
  Session& session = *core_.sessions.Find(waiter.session);
  FetchReply granted;
  granted.leases.reserve(waiter.chunks.size());
  for (size_t i = 0; i < waiter.chunks.size(); ++i) {
    const ChunkIndex index = waiter.chunks[i];
    const Access access = waiter.AccessOf(i);
    const Chunk& chunk = core_.chunks[index];
    Uses& uses = uses_[index];
    uses.leased = true;
    uses.only_stepped = false;
    Pin& pin = *uses.FindPin(waiter.session);
    --pin.pending;
    // A session that writes the chunk already keeps its write lease and the version of it, even if
    // this fetch only reads.
    const bool writes = pin.granted() && pin.access == Access::kWrite;
    if (access == Access::kWrite && !writes) {
      const bool was_common = chunk.common() != nullptr;
      if (was_common || chunk.repeats_offer) {
        core_.work.Send(ContentWritten{session.id, core_.ids.IdFor(index, session.id), was_common});
      }
      if (was_common) {
        residency_.LeaveCommon(index, std::move(waiter.homes.at(i)), TierSet(waiter.tier));
      }
      residency_.WriteInPlace(index);
    }
    pin.Grant(writes ? Access::kWrite : access, session.leases.Take());
    // A fetch that failed had raised pending_access to write.
    if (pin.pending == 0 && pin.pending_access != pin.access) core_.PinsChanged(index);
    Lease lease;
    lease.chunk = core_.ids.IdFor(index, session.id);
    lease.tier = waiter.tier;
    lease.place = PlaceOf(chunk, waiter.tier);
    lease.version = chunk.version;
    lease.access = pin.access;
    granted.leases.push_back(lease);
  }
  prefetcher_.AddEvictionHints(session, &granted);
  prefetcher_.AddAhead(session, &granted.ahead);
  // A fetch that the event of its call grants has not waited.
  if (core_.now > waiter.started) {
    granted.waited = true;
    TracedStall stall{waiter.started, core_.now - waiter.started, absl::nullopt,
                      static_cast<uint32_t>(waiter.chunks.size())};
    if (waiter.waited_for_copy) stall.waited_for = Tier::kDevice;
    if (waiter.waited_for_ssd) stall.waited_for = Tier::kSsd;
    waiter.job->trace.Stalled(stall);
    waiter.job->clock.Stalled(waiter.started, core_.now);
    Duration& stalled = residency_.WaitedForBudget(*waiter.job, waiter.started)
                            ? core_.counters.stalled_on_budget
                        : waiter.waited_for_ssd  ? core_.counters.stalled_on_ssd
                        : waiter.waited_for_copy ? core_.counters.stalled_on_copy
                                                 : core_.counters.stalled_on_room;
    stalled += core_.now - waiter.started;
  }
  core_.AnswerWith(waiter.call, std::move(granted));
  Leave(waiter);
}

void Calls::Fail(Waiter& waiter, const absl::Status& status) {
  const bool runs_step = waiter.runs_step();
  PartFailed failed = Cancel(waiter, status);
  if (runs_step) core_.work.Send(std::move(failed));
}

PartFailed Calls::Cancel(Waiter& waiter, const absl::Status& status) {
  if (waiter.admitted) {
    for (size_t nth = 0; nth < waiter.chunks.size(); ++nth) {
      const ChunkIndex index = waiter.chunks[nth];
      Uses& uses = uses_[index];
      uses.waiters.erase(std::remove(uses.waiters.begin(), uses.waiters.end(), &waiter),
                         uses.waiters.end());
      for (size_t i = 0; i < uses.pins.size(); ++i) {
        Pin& pin = uses.pins[i];
        if (pin.session != waiter.session) continue;
        --pin.pending;
        if (pin.pending == 0 && !pin.granted()) {
          UnpinChunk(index, i);
        } else {
          core_.PinsChanged(index);
        }
        break;
      }
      if (waiter.runs_step() && nth >= waiter.first_written) {
        uses.overwrite = false;
        // The step part never ran, so the slot has bytes of an earlier use that count as valid.
        if (core_.chunks[index].blank) residency_.Discard(index);
      }
      core_.ScheduleChunk(index);
    }
  }
  core_.ScheduleRoomCheck(*waiter.job, waiter.tier);
  if (!IsOwn(waiter.call)) core_.Refuse(waiter.call, status);
  PartFailed failed{waiter.job->id, waiter.owner, {}};
  if (auto* const run = std::get_if<RunStep>(&waiter.then)) failed.purpose = run->purpose;
  Leave(waiter);
  return failed;
}

void Calls::ReleaseLease(Session& session, ChunkIndex index) {
  std::vector<Pin>& pins = uses_[index].pins;
  for (size_t i = 0; i < pins.size(); ++i) {
    Pin& pin = pins[i];
    if (pin.session != session.id) continue;
    if (!pin.granted()) return;
    pin.EndGrant();
    if (pin.pending == 0) {
      UnpinChunk(index, i);
    } else {
      core_.MarkDirty(index);  // The chunk's record no longer says that a lease writes it.
      core_.PinsChanged(index);
    }
    return;
  }
}

std::set<ChunkIndex> Calls::Awaited(const Session& session) {
  std::set<ChunkIndex> awaited;
  for (const Waiter* waiter : session.waiters) {
    awaited.insert(waiter->chunks.begin(), waiter->chunks.end());
  }
  return awaited;
}

bool Calls::IsInPart(const Session& session, ChunkIndex index) const {
  const std::vector<Pin>& pins = core_.chunks[index].uses().pins;
  return std::any_of(pins.begin(), pins.end(), [this, &session](const Pin& pin) {
    const RunningStep* const step = FindStep(StepId(pin.session.value()));
    return step != nullptr && step->owner == session.id;
  });
}

Waiter* Calls::FindWaiter(CallId call) {
  const auto found = waiters_.find(call);
  return found == waiters_.end() ? nullptr : found->second.get();
}

bool Calls::IsUnused(ChunkIndex index) const {
  const Chunk& chunk = core_.chunks[index];
  return !chunk.pinned() && chunk.uses().evicts.empty() &&
         chunk.job->waiting.NextNaming(index, 0) == nullptr;
}

std::vector<SlotNumber> Calls::HomesOf(const Job& job) const {
  std::vector<SlotNumber> slots;
  for (const auto& [call, waiter] : waiters_) {
    for (const Home& home : waiter->homes) {
      if (home.slot && waiter->job == &job) slots.push_back(home.slot.number());
    }
  }
  return slots;
}

// The reason for which each call that is not admitted waits still holds.
void Calls::CheckInvariants() const {
  std::map<const Job*, std::pair<uint32_t, uint64_t>> all;
  const auto add = [&](const PendingCall& call) {
    ++all[call.job].first;
    all[call.job].second += call.chunks.size();
    MEMTIDE_CHECK(deadlines_.count({call.deadline, call.call}) == 1);
  };
  for (const auto& [call, waiter] : waiters_) {
    add(*waiter);
    // Admission takes a call out of AdmissionQueue, where age 0 means that it does not wait.
    MEMTIDE_CHECK(waiter->admitted == (waiter->waiting.age() == 0));
    MEMTIDE_CHECK(bool(waiter->step) == (waiter->admitted && waiter->runs_step()));
    if (waiter->admitted) continue;
    const Chunk& watched = core_.chunks[waiter->chunks[waiter->waiting.watched()]];
    const bool for_room = waiter->waiting.reason() == WaitsFor::kRoom;
    MEMTIDE_CHECK(ConflictsWhereItWatches(*waiter) || (for_room && !watched.pinned()))
        << "fetch " << waiter->call << " waits for nothing";
  }
  for (const auto& [call, evict] : evicts_) {
    add(*evict);
    MEMTIDE_CHECK(core_.sessions.Find(evict->owner)->evicts.count(call) == 1);
  }
  MEMTIDE_CHECK(deadlines_.size() == waiters_.size() + evicts_.size());
  std::map<uint32_t, std::pair<uint32_t, uint32_t>> of_users;
  for (const auto& [id, job] : core_.jobs) {
    const auto& [calls, chunks] = all[job.get()];
    // Offers count with their chunks.
    MEMTIDE_CHECK(job->waiting_calls.value() == calls && job->waiting_chunks.value() >= chunks);
    of_users[job->uid].first += job->waiting_calls.value();
    of_users[job->uid].second += job->waiting_chunks.value();
    job->waiting.CheckInvariants();
  }
  for (const auto& [id, session] : core_.sessions) {
    const auto& [calls, chunks] = of_users[session.uid];
    MEMTIDE_CHECK(session.user->waiting_calls.value() == calls);
    MEMTIDE_CHECK(session.user->waiting_chunks.value() == chunks);
    for (const auto& [part, step] : session.steps) {
      MEMTIDE_CHECK(steps_.at(step).owner == id && NumberOf(steps_.at(step).purpose) == part);
    }
  }
}

}  // namespace memtide

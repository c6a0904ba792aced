// Sessions: connecting, renewing, ending, and what else a Tick ends.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/jobs/jobs.h"

namespace memtide {

void Jobs::On(const ClientConnected& event) {
  const absl::Status status =
      core_.draining || core_.refuses_sessions
          ? absl::UnavailableError("the memtide daemon is draining and takes no new session")
          : core_.sessions.Connect(event, core_.now);
  if (status.ok()) return;
  ++core_.counters.calls_refused;
  core_.Emit(CloseSession{event.session, status});
}

void Jobs::On(const ClientGone& event) {
  Session* session = core_.sessions.Find(event.session);
  if (session == nullptr) return;
  EndSession(*session, absl::UnavailableError("the session ended"), Ending::kAbrupt);
}

void Jobs::On(const RenewCall& event) {
  if (core_.CallingSession(event.call, event.session) != nullptr) core_.Answer(event.call);
}

// A session that has ended already is closed with success, because the client may repeat the call.
void Jobs::On(const CloseCall& event) {
  Session* session = core_.sessions.Find(event.session);
  if (session != nullptr) {
    EndSession(*session, absl::UnavailableError("the session was closed"), Ending::kOrderly);
  }
  core_.Answer(event.call);
  if (session != nullptr) core_.Emit(CloseSession{event.session, absl::OkStatus()});
}

// Ends all that the session has before it leaves the table: SessionTable::Erase() checks that
// nothing is left.
void Jobs::EndSession(Session& session, const absl::Status& why, Ending ending) {
  const SessionId id = session.id;
  rank_contents_.EndWaitingParts(session, why);
  offers_.EndOffers(session, why);
  for (Waiter* waiter : std::vector<Waiter*>(session.waiters)) rank_contents_.Fail(*waiter, why);
  calls_.EndEvicts(session, why);
  // A part that the mover copies uses its memory until StepDone, and only counts for the session no
  // longer. A part that the session computes ends with it.
  std::set<StepId> parts;
  for (const auto& [part, step] : session.steps) {
    calls_.LeavePart(step);
    if (part != 0) parts.insert(step);
  }
  for (const StepId part : parts) {
    const RunningStep ended = calls_.EndStep(part, why);
    rank_contents_.PartEnded(*session.job, id, NumberOf(ended.purpose), /*computed=*/false);
  }
  if (session.job != nullptr) {
    const absl::optional<ResizeOperation>& resize = session.job->resize;
    if (resize.has_value() && resize->session == id) memory_.EndResize(*session.job, why);
    for (const ChunkIndex index : session.job->members.chunks()) {
      if (!core_.chunks[index].live()) continue;
      const Pin* pin = core_.chunks[index].uses().FindPin(id);
      // The pins of its waiting fetches have ended with them.
      if (pin == nullptr || !pin->granted()) continue;
      if (ending == Ending::kAbrupt && core_.options.quarantine_device_slots &&
          core_.chunks[index].uses().pin_tier == Tier::kDevice) {
        // No other chunk gets the slot before ClientQuiet (quarantine.cc).
        quarantines_[id].job = session.job;
        quarantines_[id].slots.push_back(residency_.Quarantine(index, pin->access));
      }
      // The bytes of a dead writer are neither the old nor the new content.
      if (pin->access == Access::kWrite) {
        residency_.Tear(index);
        // A call that writes the chunk goes on waiting, and makes it whole.
        calls_.FailNaming(index, /*only_readers=*/true, Lost(core_.chunks, index));
      }
      calls_.ReleaseLease(session, index);
    }
  }
  session.left_behind = {};
  offers_.WithdrawOffers(session);
  commits_.LeaveGroup(session);
  if (session.job != nullptr) commits_.LeaveRanks(session);
  if (session.job != nullptr) memory_.LeaveRegions(*session.job, id);
  LeaveJob(session);
  core_.sessions.Erase(id);
}

void Jobs::EndSessions(const Job& job, const absl::Status& why) {
  for (const SessionId id : std::vector<SessionId>(job.sessions)) {
    core_.Emit(CloseSession{id, why});
    EndSession(*core_.sessions.Find(id), why, Ending::kAbrupt);
  }
}

void Jobs::On(const Tick&) {
  for (const SessionId id : core_.sessions.Tick(core_.now)) {
    ++core_.counters.sessions_lost;
    const absl::Status why = absl::DeadlineExceededError(absl::StrCat(
        "the session was not renewed for ",
        std::chrono::duration_cast<std::chrono::seconds>(core_.options.limits.session_lease)
            .count(),
        " s and was ended"));
    core_.Emit(CloseSession{id, why});  // Before its memory goes.
    // Its process may go on, unlike one whose connection closed.
    Job* const job = core_.sessions.Find(id)->job;
    if (job != nullptr) memory_.ExposeRegions(*job);
    EndSession(*core_.sessions.Find(id), why, Ending::kAbrupt);
  }
  // A Tick is also the clock of all deadlines: no event of its own comes for them.
  ExpireCalls();
  memory_.ExpireResizes();
  std::vector<Job*> expired;
  for (auto& [id, job] : core_.jobs) {
    if (job->state() == JobState::kLingering && core_.now >= job->lingers_until &&
        !IsAwaited(*job)) {
      expired.push_back(job.get());
    } else if (job->state() == JobState::kLingering) {
      records_.SaveLastSteps(*job);
    } else if (job->state() == JobState::kRunning) {
      records_.SaveAgain(*job);
    }
    // A write or segment that failed is tried again at a Tick, so that an error that persists
    // causes no busy loop.
    residency_.RetryWrites(*job);
    residency_.ReportFailures(*job);
    core_.ledger.RetrySegments(*job->shares);
    for (const Tier tier : kMemoryTiers) {
      if (!job->share(tier).exists()) continue;
      // A chunk that waited has found room in its own job since, without memory from other jobs.
      const bool waits = job->contents != nullptr || !job->tier(tier).slot_queue.empty();
      if (!waits) core_.ledger.elastic().Satisfy(job->share(tier));
      core_.ScheduleRoomCheck(*job, tier);
    }
  }
  offers_.Tick();
  residency_.ServeWrites();
  for (Job* job : expired) EndJob(*job);
  memory_.ShrinkOverQuota();
  // Waiting Opens are tried once more, and refused when their deadline has passed.
  OpenWaiting();
  scrubber_.ScrubNext();
}

void Jobs::ExpireCalls() {
  const std::set<CallId> late = calls_.LateCalls();
  for (const CallId call : late) {
    if (Waiter* const waiter = calls_.FindWaiter(call)) {
      rank_contents_.Fail(*waiter, calls_.WhyLate(*waiter));
    }
  }
  for (const auto& [id, job] : core_.jobs) {
    for (const WaitingPart& part : job->parts.TakeLate(core_.now)) {
      ++core_.counters.deadlines_exceeded;
      core_.Refuse(part.call.call,
                   absl::DeadlineExceededError("another rank did not end the part"));
    }
    commits_.EndWaitForRanks(*job);
    records_.ExpireWaitForSnapshot(*job);
    if (job->orphans_remain) rank_contents_.FreeOrphans(*job);
  }
  for (const CallId call : late) calls_.ExpireEvict(call);
}

}  // namespace memtide

// Sessions: connecting, renewing and ending.
#include <algorithm>
#include <set>
#include <vector>

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
  const absl::Status why = absl::UnavailableError("the session ended");
  if (event.process_lives) return EndLiveSession(*session, why);
  EndSession(*session, why, Ending::kAbrupt);
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
        quarantines_[id].slots.push_back(residency_.QuarantineCopy(index, pin->access));
      }
      // The bytes of a dead writer are neither the old nor the new content.
      if (pin->access == Access::kWrite) {
        residency_.Tear(index);
        // A call that writes the chunk goes on waiting, and makes it whole.
        calls_.FailNaming(index, /*only_readers=*/true, TornChunkError(core_.chunks, index));
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

void Jobs::EndLiveSession(Session& session, const absl::Status& why) {
  Job* const job = session.job;
  if (job != nullptr) memory_.ExposeRegions(*job);
  const JobId unsafe = job != nullptr && MayStillWrite(session) ? job->id : JobId();
  EndSession(session, why, Ending::kAbrupt);
  Job* const left = core_.FindJob(unsafe);
  if (left == nullptr) return;
  EndSessions(*left,
              absl::AbortedError(absl::StrCat(
                  "another session of job \"", left->name, "\" was lost, and its process may ",
                  "still write to memory of the job; open the job again")));
}

// A GPU's memory is in quarantine for some time instead (quarantine.cc).
bool Jobs::MayStillWrite(const Session& session) const {
  if (std::any_of(session.steps.begin(), session.steps.end(),
                  [](const auto& part) { return part.first != 0; })) {
    return true;
  }
  const Job& job = *session.job;
  const std::vector<ChunkIndex> chunks = job.members.chunks();
  return std::any_of(chunks.begin(), chunks.end(), [&](ChunkIndex index) {
    const Chunk& chunk = core_.chunks[index];
    const Pin* const pin = chunk.uses().FindPin(session.id);
    const bool is_shared =
        chunk.uses().pin_tier == Tier::kHost || job.device_memory == MemoryKind::kSharedMemory;
    return pin != nullptr && pin->granted() && pin->access == Access::kWrite && is_shared;
  });
}

void Jobs::EndSessions(Job& job, const absl::Status& why) {
  if (!job.sessions.empty()) memory_.ExposeRegions(job);
  for (const SessionId id : std::vector<SessionId>(job.sessions)) {
    core_.Emit(CloseSession{id, why});
    EndSession(*core_.sessions.Find(id), why, Ending::kAbrupt);
  }
}

}  // namespace memtide

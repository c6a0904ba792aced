// Sessions: connecting, renewing, ending, and what else a Tick ends.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/state.h"

namespace memtide {

void EngineState::On(const ClientConnected& event) {
  const absl::Status status =
      draining_ || refuses_sessions_
          ? absl::UnavailableError("the memtide daemon is draining and takes no new session")
          : sessions_.Connect(event, now_);
  if (status.ok()) return;
  ++counters_.calls_refused;
  Emit(CloseSession{event.session, status});
}

void EngineState::On(const ClientGone& event) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr) return;
  EndSession(*session, absl::UnavailableError("the session ended"), Ending::kAbrupt);
}

void EngineState::On(const RenewCall& event) {
  if (CallingSession(event.call, event.session) != nullptr) Answer(event.call);
}

// A session that has ended already is closed with success, because the client may repeat the call.
void EngineState::On(const CloseCall& event) {
  Session* session = sessions_.Find(event.session);
  if (session != nullptr) {
    EndSession(*session, absl::UnavailableError("the session was closed"), Ending::kOrderly);
  }
  Answer(event.call);
  if (session != nullptr) Emit(CloseSession{event.session, absl::OkStatus()});
}

// Ends all that the session has before it leaves the table: SessionTable::Erase() checks that
// nothing is left.
void EngineState::EndSession(Session& session, const absl::Status& why, Ending ending) {
  const SessionId id = session.id;
  EndWaitingParts(session, why);
  EndOffers(session, why);
  for (Waiter* waiter : std::vector<Waiter*>(session.waiters)) Fail(*waiter, why);
  for (const CallId call : std::set<CallId>(session.evicts)) EndEvict(*evicts_.at(call), why);
  // A part that the mover computes uses its memory until StepDone, and only counts for the session
  // no longer. What the session computes ends with it.
  std::set<StepId> parts;
  for (const auto& [part, step] : session.steps) {
    RunningStep& running = steps_.at(step);
    running.of_session.End();
    if (running.offer != nullptr) running.offer->EndCounts();
    if (part != 0) parts.insert(step);
  }
  for (const StepId part : parts) EndStep(part, why, 0);
  if (session.job != nullptr) {
    const absl::optional<ResizeOperation>& resize = session.job->resize;
    if (resize.has_value() && resize->session == id) EndResize(*session.job, why);
    for (const ChunkIndex index : session.job->members) {
      if (index == kNoChunk || !chunks_[index].live()) continue;
      const Pin* pin = chunks_[index].FindPin(id);
      // The pins of its waiting fetches have ended with them.
      if (pin == nullptr || !pin->granted()) continue;
      if (ending == Ending::kAbrupt && options_.quarantine_device_slots &&
          chunks_[index].pin_tier == Tier::kDevice) {
        Quarantine(id, index);
      }
      // The bytes of a dead writer are neither the old nor the new content.
      if (pin->access == Access::kWrite) {
        chunks_[index].copies.torn = true;
        // A call that writes the chunk goes on waiting, and makes it whole.
        FailNaming(index, /*only_readers=*/true, Lost(index));
      }
      ReleaseLease(session, index);
    }
  }
  session.left_behind.clear();
  WithdrawOffers(session);
  LeaveGroup(session);
  if (session.job != nullptr) LeaveRanks(session);
  if (session.job != nullptr) LeaveRegions(*session.job, id);
  LeaveJob(session);
  sessions_.Erase(id);
}

Session* EngineState::CallingSession(CallId call, SessionId id) {
  const absl::StatusOr<Session*> session = sessions_.Calling(id, now_);
  if (session.ok()) return *session;
  Answer(call, session.status());
  return nullptr;
}

bool EngineState::AnswerAgain(const Session& session, CallId call, uint64_t request_id,
                              size_t event_kind) {
  const absl::StatusOr<const Reply*> reply = sessions_.Replayed(session, request_id, event_kind);
  if (!reply.ok()) {
    Answer(call, reply.status());
    return true;
  }
  if (*reply == nullptr) return false;
  // The remembered reply names the first call; this is another attempt of it.
  Reply again = **reply;
  again.call = call;
  Emit(std::move(again));
  return true;
}

void EngineState::On(const Tick&) {
  for (const SessionId id : sessions_.Tick(now_)) {
    ++counters_.sessions_lost;
    const absl::Status why = absl::DeadlineExceededError(absl::StrCat(
        "the session was not renewed for ",
        std::chrono::duration_cast<std::chrono::seconds>(options_.limits.session_lease).count(),
        " s and was ended"));
    Emit(CloseSession{id, why});  // Before its memory goes.
    // Its process may go on, unlike one whose connection closed.
    Job* const job = sessions_.Find(id)->job;
    if (job != nullptr) ExposeRegions(*job);
    EndSession(*sessions_.Find(id), why, Ending::kAbrupt);
  }
  // A Tick is also the clock of all deadlines: no event of its own comes for them.
  ExpireCalls();
  ExpireResizes();
  std::vector<Job*> expired;
  for (auto& [id, job] : jobs_) {
    if (job->state() == JobState::kLingering && now_ >= job->lingers_until && !IsAwaited(*job)) {
      expired.push_back(job.get());
    }
    // A write or segment that failed is tried again at a Tick, so that an error that persists
    // causes no busy loop.
    RetryWrites(*job);
    ReportFailures(*job);
    ledger_.RetrySegments(*job->shares);
    for (const Tier tier : kMemoryTiers) {
      if (!job->share(tier).exists()) continue;
      // What waited has found room in its own job since, and nothing that others gave back came.
      const bool waits = job->contents != nullptr || !job->tier(tier).slot_queue.empty();
      if (!waits) ledger_.Satisfy(job->share(tier));
      ScheduleRoomCheck(*job, tier);
    }
  }
  offers_due_ = !offers_.empty();
  TickRepeatedOffers();
  ServeWrites();
  for (Job* job : expired) EndJob(*job);
  ShrinkOverQuota();
  // Waiting Opens are tried once more, and refused when their deadline has passed.
  OpenWaiting();
  Scrub();
}

void EngineState::ExpireCalls() {
  // The oldest call fails first. Fail() erases from deadlines_.
  std::set<CallId> late;
  for (const auto& [deadline, call] : deadlines_) {
    if (now_ < deadline) break;
    ++counters_.admission_looks;
    late.insert(call);
  }
  for (const CallId call : late) {
    const auto found = waiters_.find(call);
    if (found == waiters_.end()) continue;
    Waiter* const waiter = found->second.get();
    const Job& job = *waiter->job;
    if (writes_.WaitingOf(job.id) > 0) {
      Fail(*waiter, AwaitsBudget(absl::StrCat("room for ", waiter->chunks.size(), " chunks")));
      continue;
    }
    ++counters_.deadlines_exceeded;
    std::string text = absl::StrCat(
        waiter->chunks.size(), " chunks were not at the ", TierName(waiter->tier),
        " tier in time: ",
        waiter->admitted ? "they are on their way"
                         : absl::StrCat(job.tier(waiter->tier).pinned_chunks(), " of ",
                                        job.share(waiter->tier).slots().size(),
                                        " slots are leased; release some, or raise the pool"));
    const uint32_t quarantined = job.share(waiter->tier).slots().quarantined_slots();
    if (quarantined > 0) {
      absl::StrAppend(&text, "; ", quarantined,
                      " slots wait until what a killed process left on the device has ended");
    }
    if (!job.last_error.ok()) {
      absl::StrAppend(&text, "; last failure: ", job.last_error.message());
    }
    Fail(*waiter, absl::DeadlineExceededError(text));
  }
  for (const auto& [id, job] : jobs_) {
    for (const WaitingPart& late : job->parts.TakeLate(now_)) {
      ++counters_.deadlines_exceeded;
      Refuse(late.call.call, absl::DeadlineExceededError("another rank did not end the part"));
    }
    EndWaitForRanks(*job);
    ExpireWaitForSnapshot(*job);
    if (job->orphans_remain) FreeOrphans(*job);
  }
  for (const CallId call : late) {
    const auto found = evicts_.find(call);
    if (found == evicts_.end()) continue;
    EvictOperation& evict = *found->second;
    if (writes_.WaitingOf(evict.job->id) > 0) {
      EndEvict(evict, AwaitsBudget(absl::StrCat("the eviction of ", evict.missing, " chunks")));
      continue;
    }
    ++counters_.deadlines_exceeded;
    EndEvict(evict, absl::DeadlineExceededError(absl::StrCat(
                        evict.missing, " chunks did not reach the ", TierName(evict.tier),
                        " tier in time; ", evict.job->last_error.message())));
  }
}

}  // namespace memtide

// Sessions: connecting, renewing, remembering replies, ending.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/state.h"

namespace memtide {

Session* EngineState::FindSession(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

void EngineState::On(const ClientConnected& event) {
  uint32_t of_uid = 0;
  for (const auto& [id, session] : sessions_) of_uid += session.uid == event.uid;
  absl::Status refusal;
  if (draining_) {
    refusal = absl::UnavailableError("the memtide daemon is draining and takes no new session");
  } else if (sessions_.size() >= options_.limits.sessions) {
    refusal = absl::ResourceExhaustedError(
        absl::StrCat("the node has its limit of ", options_.limits.sessions, " sessions open"));
  } else if (of_uid >= options_.limits.sessions_per_uid) {
    refusal = absl::ResourceExhaustedError(absl::StrCat("user ", event.uid, " has its limit of ",
                                                        options_.limits.sessions_per_uid,
                                                        " sessions open; end one of them first"));
  }
  if (!refusal.ok()) {
    ++counters_.calls_refused;
    Emit(CloseSession{event.session, std::move(refusal)});
    return;
  }
  Session session;
  session.id = event.session;
  session.uid = event.uid;
  session.pid = event.pid;
  session.renewed = now_;
  sessions_.emplace(event.session, std::move(session));
}

void EngineState::On(const ClientGone& event) {
  Session* session = FindSession(event.session);
  if (session != nullptr) EndSession(*session, absl::UnavailableError("the session ended"));
}

void EngineState::On(const RenewCall& event) {
  if (CallingSession(event.call, event.session) != nullptr) Answer(event.call);
}

void EngineState::On(const CloseCall& event) {
  Session* session = FindSession(event.session);
  if (session != nullptr) EndSession(*session, absl::UnavailableError("the session was closed"));
  Answer(event.call);
  if (session != nullptr) Emit(CloseSession{event.session, absl::OkStatus()});
}

void EngineState::EndSession(Session& session, const absl::Status& why) {
  const SessionId id = session.id;
  for (FetchOperation* fetch : std::vector<FetchOperation*>(session.fetches)) Fail(*fetch, why);
  std::vector<EvictOperation*> evicts;
  for (const auto& [call, evict] : evicts_) {
    if (evict->session == id) evicts.push_back(evict.get());
  }
  for (EvictOperation* evict : evicts) EndEvict(*evict, why);
  if (session.job != nullptr) {
    const absl::optional<ResizeOperation>& resize = session.job->resize;
    if (resize.has_value() && resize->session == id) EndResize(*session.job, why);
    for (const ChunkIndex index : session.job->members) {
      if (index == kNoChunk || chunks_[index].freed_in_flight) continue;
      const Pin* pin = chunks_[index].FindPin(id);
      if (pin == nullptr || !pin->granted) continue;
      // The bytes of a dead writer are neither the old nor the new content.
      if (pin->access == Access::kWrite) {
        chunks_[index].torn = true;
        FailNaming(index, /*only_readers=*/true, Lost(index));
      }
      ReleaseLease(session, index);
    }
  }
  if (session.job != nullptr) LeaveRegions(*session.job, id);
  LeaveJob(session);
  sessions_.erase(id);
}

Session* EngineState::CallingSession(CallId call, SessionId id) {
  Session* session = FindSession(id);
  if (session == nullptr) {
    Answer(call, absl::UnauthenticatedError("the session has ended; connect again"));
    return nullptr;
  }
  session->renewed = now_;
  if (session->job == nullptr || session->opening) {
    Answer(call, absl::FailedPreconditionError("the session has no open job; call Open first"));
    return nullptr;
  }
  return session;
}

bool EngineState::AnswerAgain(Session& session, CallId call, uint64_t request_id,
                              size_t event_kind) {
  if (request_id == 0) {
    Answer(call, absl::InvalidArgumentError("request_id must not be zero"));
    return true;
  }
  for (const Session::Remembered& old : session.remembered) {
    if (old.request_id != request_id) continue;
    if (old.event_kind != event_kind) {
      Answer(call, absl::InvalidArgumentError(absl::StrCat(
                       "request_id ", request_id, " was used for another kind of call already")));
      return true;
    }
    Reply again = *old.reply;
    again.call = call;
    Emit(std::move(again));
    return true;
  }
  return false;
}

void EngineState::Remember(Session& session, uint64_t request_id, size_t event_kind,
                           const Reply& reply) {
  if (session.remembered.size() >= options_.limits.remembered_replies_per_session) {
    session.remembered.pop_front();
  }
  session.remembered.push_back({request_id, event_kind, std::make_unique<Reply>(reply)});
}

void EngineState::On(const Tick&) {
  // A gap between ticks means that the daemon did not run, so that clients could not renew.
  const Duration gap = now_ - last_tick_;
  if (last_tick_ != Instant() && gap > std::chrono::seconds(1)) {
    for (auto& [id, session] : sessions_) session.renewed = std::min(now_, session.renewed + gap);
  }
  last_tick_ = now_;
  std::vector<Session*> lost;
  for (auto& [id, session] : sessions_) {
    const bool late = now_ - session.renewed > options_.limits.session_lease;
    if (late && !session.opening) lost.push_back(&session);
  }
  for (Session* session : lost) {
    ++counters_.sessions_lost;
    const absl::Status why = absl::DeadlineExceededError(absl::StrCat(
        "the session was not renewed for ",
        std::chrono::duration_cast<std::chrono::seconds>(options_.limits.session_lease).count(),
        " s and was ended"));
    const SessionId id = session->id;
    Emit(CloseSession{id, why});  // Before its memory goes.
    EndSession(*session, why);
  }
  ExpireFetches();
  ExpireResizes();
  std::vector<Job*> expired;
  for (auto& [id, job] : jobs_) {
    if (job->state == Job::State::kLingering && now_ >= job->lingers_until) {
      expired.push_back(job.get());
    }
    std::vector<ChunkIndex> retry_after_tick;
    retry_after_tick.swap(job->retry_after_tick);
    for (const ChunkIndex index : retry_after_tick) {
      chunks_[index].retry_after_tick = false;
      ScheduleChunk(index);
    }
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      if (job->tier(tier).exists()) ScheduleRoomCheck(*job, tier);
    }
  }
  for (Job* job : expired) EndJob(*job);
  OpenWaiting();
}

void EngineState::ExpireFetches() {
  std::vector<FetchOperation*> late;
  for (const auto& [call, fetch] : fetches_) {
    if (now_ >= fetch->deadline) late.push_back(fetch.get());
  }
  for (FetchOperation* fetch : late) {
    ++counters_.deadlines_exceeded;
    const TierShare& tier = fetch->job->tier(fetch->tier);
    std::string text = absl::StrCat(
        fetch->chunks.size(), " chunks were not at the ", TierName(fetch->tier), " tier in time: ",
        fetch->admitted ? "they are on their way"
                        : absl::StrCat(tier.pinned_chunks, " of ", tier.slots->size(),
                                       " slots are leased; release some, or raise the pool"));
    if (!fetch->job->last_error.ok()) {
      absl::StrAppend(&text, "; last failure: ", fetch->job->last_error.message());
    }
    Fail(*fetch, absl::DeadlineExceededError(text));
  }
  std::vector<EvictOperation*> late_evicts;
  for (const auto& [call, evict] : evicts_) {
    if (now_ >= evict->deadline) late_evicts.push_back(evict.get());
  }
  for (EvictOperation* evict : late_evicts) {
    ++counters_.deadlines_exceeded;
    EndEvict(*evict, absl::DeadlineExceededError(absl::StrCat(
                         evict->missing, " chunks did not reach the ", TierName(evict->tier),
                         " tier in time; ", evict->job->last_error.message())));
  }
}

}  // namespace memtide

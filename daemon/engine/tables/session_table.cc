#include "daemon/engine/tables/session_table.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {

SessionTable::SessionTable(const Limits& limits) : limits_(limits) {
  MEMTIDE_CHECK(limits.remembered_replies_per_session > 0);
}

uint32_t SessionTable::SessionsOf(uint32_t uid) const {
  uint32_t count = 0;
  for (const auto& [id, session] : sessions_) count += session.uid == uid;
  return count;
}

// Both limits bound descriptors and memory. The second one leaves sessions for other users.
absl::Status SessionTable::Connect(const ClientConnected& event, Instant now) {
  if (sessions_.size() >= limits_.sessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the node has its limit of ", limits_.sessions, " sessions open"));
  }
  if (SessionsOf(event.uid) >= limits_.sessions_per_uid) {
    return absl::ResourceExhaustedError(absl::StrCat("user ", event.uid, " has its limit of ",
                                                     limits_.sessions_per_uid,
                                                     " sessions open; end one of them first"));
  }
  const auto [entry, added] = sessions_.try_emplace(event.session);
  MEMTIDE_CHECK(added) << "session " << event.session << " connected twice";
  Session& session = entry->second;
  session.id = event.session;
  session.uid = event.uid;
  session.pid = event.pid;
  session.renewed_ = now;
  return absl::OkStatus();
}

void SessionTable::Erase(SessionId id) {
  const auto found = sessions_.find(id);
  MEMTIDE_CHECK(found != sessions_.end()) << "there is no session " << id;
  const Session& session = found->second;
  // Tokens of these counts point at the session, so none may be left.
  MEMTIDE_CHECK(session.job == nullptr && session.waiters.empty() && session.leases.value() == 0 &&
                session.waiting_calls.value() == 0)
      << "session " << id << " still uses its job";
  sessions_.erase(found);
}

Session* SessionTable::Find(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

const Session* SessionTable::Find(SessionId id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

absl::StatusOr<Session*> SessionTable::Calling(SessionId id, Instant now) {
  Session* const session = Find(id);
  if (session == nullptr) {
    return absl::UnauthenticatedError("the session has ended; connect again");
  }
  session->renewed_ = now;
  if (session->job == nullptr || session->opening) {
    return absl::FailedPreconditionError("the session has no open job; call Open first");
  }
  return session;
}

std::vector<SessionId> SessionTable::Tick(Instant now) {
  MEMTIDE_CHECK(now >= last_tick_) << "time went back";
  const Duration gap = now - last_tick_;
  // Ticks come several times a second while the daemon runs.
  if (last_tick_ != Instant() && gap > std::chrono::seconds(1)) {
    // The daemon did not run, so that clients could not renew.
    for (auto& [id, session] : sessions_) session.renewed_ = std::min(now, session.renewed_ + gap);
  }
  last_tick_ = now;
  std::vector<SessionId> expired;
  for (const auto& [id, session] : sessions_) {
    // A session that waits for its Open cannot renew.
    const bool late = now - session.renewed_ > limits_.session_lease;
    if (late && !session.opening) expired.push_back(id);
  }
  return expired;
}

absl::StatusOr<const Reply*> SessionTable::Replayed(const Session& session, uint64_t request_id,
                                                    size_t event_kind) const {
  if (request_id == 0) return absl::InvalidArgumentError("request_id must not be zero");
  // A client counts its request ids up, so most calls need no search.
  if (request_id > session.largest_request_id_) return nullptr;
  for (const Session::Remembered& old : session.remembered_) {
    if (old.request_id != request_id) continue;
    // The reply of another kind would be misread by the client.
    if (old.event_kind == event_kind) return old.reply.get();
    return absl::InvalidArgumentError(
        absl::StrCat("request_id ", request_id, " was used for another kind of call already"));
  }
  return nullptr;
}

void SessionTable::Remember(Session& session, uint64_t request_id, size_t event_kind,
                            const Reply& reply) {
  MEMTIDE_CHECK(request_id != 0);
  if (session.remembered_.size() >= limits_.remembered_replies_per_session) {
    session.remembered_.pop_front();
  }
  session.largest_request_id_ = std::max(session.largest_request_id_, request_id);
  session.remembered_.push_back({request_id, event_kind, std::make_unique<Reply>(reply)});
}

void SessionTable::CheckInvariants() const {
  MEMTIDE_CHECK(sessions_.size() <= limits_.sessions);
  std::map<uint32_t, uint32_t> of_uid;
  for (const auto& [id, session] : sessions_) {
    MEMTIDE_CHECK(session.id == id);
    MEMTIDE_CHECK(++of_uid[session.uid] <= limits_.sessions_per_uid) << "user " << session.uid;
    MEMTIDE_CHECK(session.remembered_.size() <= limits_.remembered_replies_per_session);
    for (const Session::Remembered& old : session.remembered_) {
      MEMTIDE_CHECK(old.request_id <= session.largest_request_id_);
    }
    MEMTIDE_CHECK(session.job != nullptr || session.leases.value() == 0)
        << "session " << id << " has leases of no job";
  }
}

}  // namespace memtide

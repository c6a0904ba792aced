#include "daemon/engine/tables/session_table.h"

#include <algorithm>
#include <chrono>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {
namespace {

// The chunks that the reply names. Only an AllocateReply is large.
size_t ChunksIn(const Reply& reply) {
  const auto* allocated = std::get_if<AllocateReply>(&reply.value);
  return allocated == nullptr ? 0 : allocated->chunks.size();
}

}  // namespace

SessionTable::SessionTable(const Limits& limits) : limits_(limits) {
  MEMTIDE_CHECK(limits.remembered_replies_per_session > 0);
}

// Both limits bound descriptors and memory. The second one leaves sessions for other users.
absl::Status SessionTable::Connect(const ClientConnected& event, Instant now) {
  if (sessions_.size() >= limits_.sessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the node has its limit of ", limits_.sessions, " sessions open"));
  }
  const auto user = users_.find(event.uid);
  if (user != users_.end() && user->second.sessions >= limits_.sessions_per_uid) {
    return absl::ResourceExhaustedError(absl::StrCat("user ", event.uid, " has its limit of ",
                                                     limits_.sessions_per_uid,
                                                     " sessions open; end one of them first"));
  }
  const auto [entry, added] = sessions_.try_emplace(event.session);
  MEMTIDE_CHECK(added) << "session " << event.session << " connected twice";
  Session& session = entry->second;
  session.id = event.session;
  session.uid = event.uid;
  session.groups = event.groups;
  std::sort(session.groups.begin(), session.groups.end());
  session.groups.erase(std::unique(session.groups.begin(), session.groups.end()),
                       session.groups.end());
  session.user = &users_[event.uid];
  ++session.user->sessions;
  session.pid = event.pid;
  session.renewed_ = now;
  return absl::OkStatus();
}

void SessionTable::Erase(SessionId id) {
  const auto found = sessions_.find(id);
  MEMTIDE_CHECK(found != sessions_.end()) << "there is no session " << id;
  Session& session = found->second;
  // Tokens of these counts point at the session, so none may be left.
  MEMTIDE_CHECK(session.job == nullptr && session.waiters.empty() && session.leases.value() == 0 &&
                session.waiting_calls.value() == 0 && session.evicts.empty())
      << "session " << id << " still uses its job";
  while (!session.remembered_.empty()) ForgetOldest(session);
  const uint32_t uid = session.uid;
  const bool is_last = --session.user->sessions == 0;
  sessions_.erase(found);
  if (is_last) users_.erase(uid);
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
  const size_t chunks = ChunksIn(reply);
  while (!session.remembered_.empty() &&
         (session.remembered_.size() >= limits_.remembered_replies_per_session ||
          session.remembered_chunks_ + chunks > limits_.remembered_chunks_per_session)) {
    ForgetOldest(session);
  }
  session.largest_request_id_ = std::max(session.largest_request_id_, request_id);
  session.remembered_.push_back({request_id, event_kind, std::make_unique<Reply>(reply)});
  session.remembered_chunks_ += chunks;
  remembered_chunks_ += chunks;
}

void SessionTable::ForgetOldest(Session& session) {
  const size_t chunks = ChunksIn(*session.remembered_.front().reply);
  session.remembered_chunks_ -= chunks;
  remembered_chunks_ -= chunks;
  session.remembered_.pop_front();
}

void SessionTable::CheckInvariants() const {
  MEMTIDE_CHECK(sessions_.size() <= limits_.sessions);
  std::map<uint32_t, uint32_t> of_uid;
  size_t remembered_chunks = 0;
  for (const auto& [id, session] : sessions_) {
    MEMTIDE_CHECK(session.id == id);
    MEMTIDE_CHECK(++of_uid[session.uid] <= limits_.sessions_per_uid) << "user " << session.uid;
    MEMTIDE_CHECK(session.user == &users_.at(session.uid));
    remembered_chunks += session.remembered_chunks_;
    MEMTIDE_CHECK(session.remembered_.size() <= limits_.remembered_replies_per_session);
    for (const Session::Remembered& old : session.remembered_) {
      MEMTIDE_CHECK(old.request_id <= session.largest_request_id_);
    }
    MEMTIDE_CHECK(session.job != nullptr || session.leases.value() == 0)
        << "session " << id << " has leases of no job";
  }
  MEMTIDE_CHECK(remembered_chunks_ == remembered_chunks && users_.size() == of_uid.size());
  for (const auto& [uid, user] : users_) MEMTIDE_CHECK(user.sessions == of_uid[uid]);
}

}  // namespace memtide

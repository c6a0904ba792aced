// SessionTable: who is connected, when each session last renewed, and the replies that it may ask
// for again. Engine-internal.
//
// The table owns the sessions. Their leases and calls are the engine's, which counts them in the
// public fields of Session and ends them before it erases the session. A session that does not
// renew within Limits::session_lease has expired: Tick() names it, and the engine ends it.
//
// A client that lost a reply repeats the call with the same request_id. The table keeps the last
// Limits::remembered_replies_per_session replies of each session, or fewer if these name more than
// remembered_chunks_per_session chunks, so that such a call changes nothing a second time.
//
// Ownership: a Session* stays valid until the session is erased.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_SESSION_TABLE_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_SESSION_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/count.h"
#include "base/digest.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"
#include "daemon/engine/interface/types.h"

namespace memtide {

struct Job;
struct Waiter;

// A User counts the sessions of one user, and their calls.
struct User {
  uint32_t sessions = 0;
  // Their calls that wait for chunks, and the chunks that these name.
  Count waiting_calls, waiting_chunks;
};

// Entries that a session had leased for reading when one of its ids was given a content of its own:
// the lease ends with that of the id.
class LeftBehind {
 public:
  void Add(ChunkId id, ChunkIndex entry) {
    Remove(id);
    entries_[id] = entry;
    ids_.emplace(entry, id);
  }
  void Remove(ChunkId id) {
    const auto found = entries_.find(id);
    if (found == entries_.end()) return;
    ids_.erase({found->second, id});
    entries_.erase(found);
  }
  absl::optional<ChunkIndex> EntryOf(ChunkId id) const {
    const auto found = entries_.find(id);
    if (found == entries_.end()) return absl::nullopt;
    return found->second;
  }
  // One of the ids whose leases are on the entry.
  absl::optional<ChunkId> IdOf(ChunkIndex entry) const {
    const auto found = ids_.lower_bound({entry, ChunkId(0)});
    if (found == ids_.end() || found->first != entry) return absl::nullopt;
    return found->second;
  }
  bool Has(ChunkId id) const { return entries_.count(id) > 0; }

 private:
  std::map<ChunkId, ChunkIndex> entries_;
  std::set<std::pair<ChunkIndex, ChunkId>> ids_;
};

// The fields stand by the class that changes them most. Others read them.
struct Session {
  // Jobs: who it is, and its job.
  SessionId id;
  uint32_t uid = 0;
  std::vector<uint32_t> groups;  // The process's groups, by number.
  User* user = nullptr;          // Lives as long as a session of it.
  int32_t pid = 0;
  Job* job = nullptr;    // nullptr: none open (yet).
  bool opening = false;  // An OpenCall waits.
  uint32_t rank = 0;
  std::string group;  // As in OpenCall: it is one of `group_ranks` ranks with a job each.
  uint32_t group_ranks = 0;
  uint64_t opened_at_step = 0;  // Its committed_step when it opened the job.

  // Residency.
  // Memory of the device had the only copy of a chunk of its job, and has failed. The session may
  // compute from that content, so that it writes no chunk that was lost so.
  bool has_lost_content = false;

  // Calls.
  Count leases, waiting_calls;
  std::vector<Waiter*> waiters;  // Its fetches and steps that are not granted.
  std::set<CallId> evicts;       // Its evictions that are not answered.
  // Its step parts that run, by their number; those that the mover computes have the number zero.
  std::set<std::pair<uint64_t, StepId>> steps;

  // Offers.
  // Digests of the chunks that the session has offered, each of the content of a version.
  struct Offered {
    Version version;
    Digest digest;
  };
  std::map<ChunkId, Offered> offered;
  // Chunks whose offers repeat: those that may have become equal to others since, and those whose
  // leases keep them from being offered.
  std::set<ChunkId> to_offer, to_revoke;
  bool own_offer_runs = false;  // An offer of the engine's own is under way.

  // RankContents, and Jobs where a lease ends with its session.
  LeftBehind left_behind;

  // Commits, and Jobs where a session goes on as a rank that was kept.
  uint64_t committed_step = 0;  // In a job of several ranks.
  // A rank that has ended since the session opened its job, which keeps ranks.
  absl::optional<uint32_t> lost_rank;
  // Other ranks have waited for its commit, and went on without it.
  bool missed_a_commit = false;

 private:
  friend class SessionTable;
  struct Remembered {
    uint64_t request_id = 0;
    size_t event_kind = 0;  // Index in Event: an id belongs to one kind of call.
    std::unique_ptr<const Reply> reply;
  };

  Instant renewed_;
  std::deque<Remembered> remembered_;  // Oldest first.
  size_t remembered_chunks_ = 0;       // Their ids in these replies.
  // The largest id that was ever remembered: most ids are larger, and need no look at each reply.
  uint64_t largest_request_id_ = 0;
};

class SessionTable {
 public:
  using Map = std::map<SessionId, Session>;

  // REQUIRES: limits.remembered_replies_per_session > 0.
  explicit SessionTable(const Limits& limits);

  // Adds a session, which counts as renewed. RESOURCE_EXHAUSTED: the node, or the user, has its
  // limit of sessions. REQUIRES: the id is in use by no session.
  absl::Status Connect(const ClientConnected& event, Instant now);
  // REQUIRES: the session is in the table, and has no job, no lease and no call that waits
  // for chunks any more.
  void Erase(SessionId id);

  // nullptr: there is no such session.
  Session* Find(SessionId id);
  const Session* Find(SessionId id) const;
  // The session, which is renewed, for a call about chunks. UNAUTHENTICATED: there is none.
  // FAILED_PRECONDITION: it has no open job.
  absl::StatusOr<Session*> Calling(SessionId id, Instant now);

  void Renew(Session& session, Instant now) { session.renewed_ = now; }
  // The sessions that have expired. One that waits for its Open cannot renew, and does not expire.
  // The time in which the daemon did not run, known by the gap between two ticks, does not count.
  // REQUIRES: `now` is no earlier than at the last call.
  std::vector<SessionId> Tick(Instant now);

  // The reply to an earlier call of this kind with this id; nullptr: none is remembered.
  // INVALID_ARGUMENT: the id is zero, or belongs to another kind of call.
  absl::StatusOr<const Reply*> Replayed(const Session& session, uint64_t request_id,
                                        size_t event_kind) const;
  // Forgets the oldest replies of the session where it has its limits of them. Keeps this one.
  // REQUIRES: request_id != 0.
  void Remember(Session& session, uint64_t request_id, size_t event_kind, const Reply& reply);

  // Chunk ids in all remembered replies.
  size_t remembered_chunks() const { return remembered_chunks_; }

  size_t size() const { return sessions_.size(); }
  Map::const_iterator begin() const { return sessions_.begin(); }
  Map::const_iterator end() const { return sessions_.end(); }

  void CheckInvariants() const;

 private:
  void ForgetOldest(Session& session);

  const Limits limits_;
  Instant last_tick_;
  size_t remembered_chunks_ = 0;
  std::map<uint32_t, User> users_;  // By uid, as long as they have sessions.
  Map sessions_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_SESSION_TABLE_H_

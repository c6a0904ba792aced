// CallQueue: the calls that wait for the engine, fair between users and between the sessions of one
// user.
//
// Events of one session are handled in the order in which they were sent: its connection, its calls
// and its end. Users take turns by what their calls cost, and sessions of a user within the turns
// of that user (FairQueue). So a call waits for at most one call of each other user, and of each
// session of its own. Calls of no session (status, traces, metrics) count as one user more.
//
// A user may have as many calls here as there is room left, so that each finds some however many
// others send: one has half of the queue at most, two a third each, and so on.
//
// Thread safety: thread-compatible.
#ifndef MEMTIDE_DAEMON_SERVICE_CALL_QUEUE_H_
#define MEMTIDE_DAEMON_SERVICE_CALL_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <type_traits>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/fair_queue.h"
#include "base/ids.h"
#include "daemon/engine/interface/events.h"

namespace memtide {

// The session of an event; nullopt: it is of none.
template <typename OneEvent, typename = void>
struct SessionOf {
  static absl::optional<SessionId> In(const OneEvent&) { return absl::nullopt; }
};
template <typename OneEvent>
struct SessionOf<OneEvent, std::void_t<decltype(OneEvent::session)>> {
  static absl::optional<SessionId> In(const OneEvent& event) { return event.session; }
};

class CallQueue {
 public:
  // `most`: the calls that may wait.
  explicit CallQueue(size_t most) : most_(most) {}

  // Whether the event is for this queue: it is of a session, or a call. Reports of the edges are
  // not.
  static bool Takes(const Event& event);

  bool empty() const { return users_.empty(); }
  size_t size() const { return users_.size(); }

  // RESOURCE_EXHAUSTED: the user of the session has as many calls here as it may have.
  absl::Status CheckRoom(absl::optional<SessionId> session) const;
  // REQUIRES: Takes(event).
  void Push(Event event);
  // REQUIRES: size() > 0.
  Event Pop();
  void Clear();

 private:
  using Session = absl::optional<SessionId>;
  using User = absl::optional<uint32_t>;
  struct Waiting {
    Event event;
    uint64_t cost = 0;
  };

  User UserOf(Session session) const;

  const size_t most_;
  absl::flat_hash_map<SessionId, uint32_t> uids_;  // By connected session.
  // `users_` has an item for each item of `calls_`.
  FairQueue<std::monostate, User, uint64_t> users_;
  std::map<User, FairQueue<Waiting, Session, uint64_t>> calls_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_CALL_QUEUE_H_

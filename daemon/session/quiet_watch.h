// QuietWatch: when a process whose session ended has left nothing on the GPU any more.
//
// The socket of a killed process closes before its driver's files do, and the driver may end its
// channels later still, in a thread of the kernel. So a session is quiet kAfterExit after its
// process is gone, which a pidfd says, and at the latest kQuietWithin after the session ended. A
// process without a pidfd counts as one that stays.
//
// Sessions of one uid beyond max_per_uid make its oldest one quiet, so that no user can make the
// watch grow; the engine lends memory of one uid to no other.
//
// Ownership: it owns the pidfds. Thread safety: thread-compatible. Nothing blocks.
#ifndef MEMTIDE_DAEMON_SESSION_QUIET_WATCH_H_
#define MEMTIDE_DAEMON_SESSION_QUIET_WATCH_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/types/optional.h"
#include "base/clock.h"
#include "base/ids.h"
#include "daemon/engine/interface/events.h"
#include "daemon/io/owned_fd.h"

namespace memtide {

class QuietWatch {
 public:
  static constexpr Duration kAfterExit = std::chrono::milliseconds(100);
  // How often next() lets the processes be looked at.
  static constexpr Duration kPeriod = std::chrono::milliseconds(20);

  struct Ended {
    SessionId session;
    uint32_t uid = 0;
    OwnedFd process;  // A pidfd, or none.
  };

  explicit QuietWatch(uint32_t max_per_uid) : max_per_uid_(max_per_uid) {}

  // The session ended at `now`.
  void Add(Ended ended, Instant now);
  // Removes and returns the sessions that are quiet.
  std::vector<ClientQuiet> Take(Instant now);
  // When Take is to be called next; nullopt: after the next Add.
  absl::optional<Duration> next(Instant now) const;

 private:
  struct Watched {
    Ended ended;
    Instant quiet_at;
    bool gone = false;
  };
  void NoteExits(Instant now);

  const uint32_t max_per_uid_;
  std::deque<Watched> watched_;  // Oldest first.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SESSION_QUIET_WATCH_H_

// StreamWatch: ends connections whose clients have opened more calls than they may.
//
// gRPC shows the daemon a call when the call's message has arrived (OpenCalls counts it from then
// on), and holds a client to MAX_CONCURRENT_STREAMS from the moment when the client acknowledges
// that setting. A client that acknowledges nothing and sends no messages could open calls without
// end, of 12 KiB each. So a StreamWatch reads the calls of each connection from gRPC's own books
// (channelz). It closes a connection with more than a connection may have; where all connections of
// a user have more than the user may have, it closes those with most until the rest is within the
// limit.
//
// It looks every 100 ms. Between two looks a client may open as many calls as one thread of gRPC
// takes in, some 10,000.
//
// Thread-safe; has one thread.
#ifndef MEMTIDE_DAEMON_SERVICE_STREAM_WATCH_H_
#define MEMTIDE_DAEMON_SERVICE_STREAM_WATCH_H_

#include <cstdint>
#include <map>
#include <thread>

#include "absl/types/optional.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "daemon/io/owned_fd.h"
#include "daemon/metrics/edge_counters.h"

namespace memtide {

// gRPC's books have a call until its memory is freed, so these are twice what is meant.
struct StreamLimits {
  uint64_t per_connection = 2 * 1024;  // MAX_CONCURRENT_STREAMS.
  uint64_t per_uid = 2 * 64 * 256;     // The waiting calls of a session, the sessions of a user.
};

class StreamWatch {
 public:
  // `counters` must outlive it.
  StreamWatch(StreamLimits limits, EdgeCounters* counters);
  ~StreamWatch();
  StreamWatch(const StreamWatch&) = delete;
  StreamWatch& operator=(const StreamWatch&) = delete;

  // A connection that gRPC has just got. REQUIRES: one thread adds connections, and no other makes
  // gRPC channels or servers.
  void Add(int fd) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Connection {
    int fd = -1;
    uint32_t uid = 0;
  };

  void Serve();
  void Look() ABSL_LOCKS_EXCLUDED(mutex_);
  void End(intptr_t id, const Connection& connection, uint64_t calls);

  const StreamLimits limits_;
  EdgeCounters* const counters_;
  const OwnedFd wake_;
  Mutex mutex_;
  intptr_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<intptr_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);  // By gRPC's id.
  absl::optional<Instant> last_said_;                                   // The thread only.
  std::thread thread_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_STREAM_WATCH_H_

// EdgeCounters: connections and calls that the daemon's edges refused before the engine saw them.
//
// Counters only grow. The node has one EdgeCounters, which outlives the edges. Thread-safe.
#ifndef MEMTIDE_DAEMON_METRICS_EDGE_COUNTERS_H_
#define MEMTIDE_DAEMON_METRICS_EDGE_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace memtide {

struct EdgeCounters {
  std::atomic<uint64_t> connections_refused{0};  // By the fd socket: limits, bad packets, silence.
  std::atomic<uint64_t> grpc_connections_refused{0};  // By StreamAcceptor: limits.
  std::atomic<uint64_t> calls_unauthenticated{0};     // Without a valid token.
  std::atomic<uint64_t> calls_malformed{0};           // Calls that cannot be converted to an event.
  std::atomic<uint64_t> calls_overloaded{0};          // CallQueue::CheckRoom().
  std::atomic<uint64_t> calls_unread{0};              // By OpenCalls: a user reads no replies.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_METRICS_EDGE_COUNTERS_H_

// EdgeCounters: what the daemon's edges count: connections and calls that they refused before the
// engine saw them, and how long they took to answer.
//
// Counters only grow. The node has one EdgeCounters, which outlives the edges. Thread-safe.
#ifndef MEMTIDE_DAEMON_METRICS_EDGE_COUNTERS_H_
#define MEMTIDE_DAEMON_METRICS_EDGE_COUNTERS_H_

#include <atomic>
#include <cstdint>

#include "daemon/metrics/latency_histogram.h"

namespace memtide {

struct EdgeCounters {
  std::atomic<uint64_t> connections_refused{0};  // By the fd socket: limits, bad packets, silence.
  std::atomic<uint64_t> grpc_connections_refused{0};  // By StreamAcceptor: limits.
  std::atomic<uint64_t> calls_unauthenticated{0};     // Without a valid token.
  std::atomic<uint64_t> calls_malformed{0};           // Calls that cannot be converted to an event.
  std::atomic<uint64_t> calls_overloaded{0};          // CallQueue::CheckRoom().
  std::atomic<uint64_t> calls_unread{0};              // By OpenCalls: a user reads no replies.
  // Fetches without a wait, from the start of their handler to their reply.
  LatencyHistogram fetch_hits;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_METRICS_EDGE_COUNTERS_H_

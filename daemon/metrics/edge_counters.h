// EdgeCounters: what the daemon's edges turned away before the engine heard of it.
//
// Only ever grow; thread-safe. One for the node, made before the edges and outliving them.
#ifndef MEMTIDE_DAEMON_METRICS_EDGE_COUNTERS_H_
#define MEMTIDE_DAEMON_METRICS_EDGE_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace memtide {

struct EdgeCounters {
  std::atomic<uint64_t> connections_refused{0};  // By the fd socket: limits, bad packets, silence.
  std::atomic<uint64_t> calls_unauthenticated{0};  // Without a valid token.
  std::atomic<uint64_t> calls_malformed{0};        // That no event can be made of.
  std::atomic<uint64_t> calls_overloaded{0};       // Above Loop::kMaxQueuedEvents.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_METRICS_EDGE_COUNTERS_H_

// Optimum: the least bytes that any policy could move for a trace, knowing all of it beforehand.
//
// A boundary (below the device, or above the disk) has `slots` above it, and a chunk must be above
// it when used. Between two uses the chunk either stays, and takes a slot all the time, or leaves,
// and is read again; a dirty chunk is also written back once. Dropping a chunk that is freed or
// never used again costs nothing, nor does the first use of a new chunk. The best choice of what
// stays is a packing of intervals (packing.h); with equal costs it is Belady's ("A study of
// replacement algorithms", 1966).
//
// A write-back that several intervals share does not fit a packing, so its cost is divided among
// them. Every division gives a lower bound; a subgradient search finds a good one. The result is a
// bound that lies below the reachable minimum by little or nothing.
//
// Like replay, the bound assumes two leases while a chunk is fetched (the last use's and its own),
// and that a write does not avoid the read. It also assumes what favours a policy: the host keeps
// no copy of a chunk on the device, a passing chunk takes no host slot, and transfers take no time.
// Each boundary of a node is bounded on its own, as if a clean chunk that stays in host memory were
// there already.
//
// Thread safety: thread-safe. Pure.
#ifndef MEMTIDE_DAEMON_REPLAY_OPTIMUM_H_
#define MEMTIDE_DAEMON_REPLAY_OPTIMUM_H_

#include <cstdint>

#include "daemon/replay/access_sequence.h"
#include "daemon/replay/links.h"

namespace memtide {

struct LeastMoves {
  double reads = 0, writes = 0;  // In chunks.

  double Total() const { return reads + writes; }
};

// Moves over the boundary below `slots`, starting with no chunk above it. REQUIRES: slots >= 2.
LeastMoves LeastMovesOnce(const AccessSequence& sequence, uint32_t slots);

// Moves that one more repetition of the iterations from `first` on adds, once they repeat exactly.
// REQUIRES: slots >= 2; first < sequence.iterations().
LeastMoves LeastMovesRepeating(const AccessSequence& sequence, uint32_t slots, size_t first);

// The same for all links of a node. With zero `device_slots` there is no device, with
// `host_holds_all` no disk.
struct BoundOptions {
  uint32_t device_slots = 0, host_slots = 0;
  bool host_holds_all = false;
};
LinkBytes LeastBytes(const AccessSequence& sequence, const BoundOptions& options, size_t first);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_OPTIMUM_H_

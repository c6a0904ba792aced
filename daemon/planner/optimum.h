// Optimum: the least bytes that any policy could move for a trace, knowing all of it beforehand.
//
// At a boundary (below the device; above the disk) with `slots` above it, a used chunk must be
// above. Between two uses of a chunk it is kept, and takes a slot all the time, or it is not, and
// is read again; it is also written once, if it was written to since it was last clean. Dropping
// what is freed or never used again costs nothing, nor does the first use of a new chunk. Which to
// keep is a packing of intervals (packing.h); with equal costs it is what Belady's rule finds
// ("A study of replacement algorithms", 1966).
//
// One write-back for several intervals between two writes does not fit a packing. Its cost is dealt
// out to them: any way to do so gives a lower bound, and the best one is searched for by
// subgradients. So the result is a bound, below what is possible by little or nothing.
//
// Assumes what replay does: two leases while a chunk comes (the chunk of the use before, and its
// own); a write does not spare the read. Assumes more than there is: the host keeps no copy of
// what is on the device, a passing chunk needs no host slot, and transfers take no time. A node's
// boundaries are bounded each by itself: a clean chunk that the host keeps is taken to be there
// already. Pure; thread-safe.
#ifndef MEMTIDE_DAEMON_PLANNER_OPTIMUM_H_
#define MEMTIDE_DAEMON_PLANNER_OPTIMUM_H_

#include <cstdint>

#include "daemon/planner/links.h"
#include "daemon/planner/sequence.h"

namespace memtide {

struct LeastMoves {
  double reads = 0, writes = 0;  // In chunks.

  double Total() const { return reads + writes; }
};

// Over the boundary below `slots`, from an empty start. All of what the trace finds below it counts
// as read. REQUIRES: slots >= 2.
LeastMoves LeastMovesOnce(const Sequence& sequence, uint32_t slots);

// What one more time of the iterations from `first` on adds, once it has come to repeat itself.
// REQUIRES: slots >= 2; first < sequence.iterations().
LeastMoves LeastMovesRepeating(const Sequence& sequence, uint32_t slots, size_t first);

// The same for a node's links together. Zero `device_slots`: there is no device.
// `host_holds_all`: there is no disk.
struct BoundOptions {
  uint32_t device_slots = 0, host_slots = 0;
  bool host_holds_all = false;
};
LinkBytes LeastBytes(const Sequence& sequence, const BoundOptions& options, size_t first);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_PLANNER_OPTIMUM_H_

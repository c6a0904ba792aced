// StripesBySpeed: how many stripes of each cycle a directory gets, so that all directories end
// their part of a long transfer at the same time. A pure function.
#ifndef MEMTIDE_DAEMON_IO_STRIPES_BY_SPEED_H_
#define MEMTIDE_DAEMON_IO_STRIPES_BY_SPEED_H_

#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "daemon/io/stripes.h"

namespace memtide {

// A directory of stores, as far as its share of them depends on it.
struct StripedDirectory {
  // Directories with the same number share one drive, and its speed.
  size_t drive = 0;
  // The speed of the drive; zero if it could not be measured: then it counts as the slowest.
  double bytes_per_second = 0;
  // The largest part of all stores that fits into the directory, up to 1.
  double largest_part = 1;
};

// The shortest cycle within 1% of the most throughput that any cycle has.
//
// Drives less than 15% slower than a faster one count as equal to it: a short measurement differs
// as much between equal drives. A directory counts as at least 1/16 as fast as the fastest, and
// each has at least one stripe for which it has room. Where the directories have too little room
// together, all get the same. REQUIRES: directories is neither empty nor longer than
// kMostStripesPerCycle.
StripeCounts StripesBySpeed(const std::vector<StripedDirectory>& directories);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_STRIPES_BY_SPEED_H_

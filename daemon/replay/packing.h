// The heaviest set of intervals of which at most `tracks` overlap anywhere.
//
// This is the maximum-weight k-colourable subgraph of an interval graph, and exact in polynomial
// time as a minimum-cost flow of `tracks` units along the line of points, where a unit may take an
// interval instead of the points under it (Carlisle and Lloyd, "On the k-coloring of intervals",
// 1995). Solved by successive shortest paths with potentials; the first potentials come from the
// line's own order. Time: tracks x intervals x log(intervals). Pure; thread-safe.
#ifndef MEMTIDE_DAEMON_REPLAY_PACKING_H_
#define MEMTIDE_DAEMON_REPLAY_PACKING_H_

#include <cstdint>
#include <vector>

namespace memtide {

// Takes a track at the points from `begin` up to, but not including, `end`.
struct Interval {
  uint32_t begin = 0, end = 0;
  int64_t weight = 0;
};

// By interval: whether it is in the set. An empty interval is if its weight is not negative.
std::vector<bool> HeaviestPacking(const std::vector<Interval>& intervals, uint32_t tracks);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_PACKING_H_

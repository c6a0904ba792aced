// Time as the engine sees it: a monotonic instant in nanoseconds, handed in with every event.
//
// Wall-clock jumps have no effect anywhere; tests and the simulation own the time.
#ifndef MEMTIDE_BASE_CLOCK_H_
#define MEMTIDE_BASE_CLOCK_H_

#include <chrono>

namespace memtide {

using Duration = std::chrono::nanoseconds;
// Since an arbitrary start (boot, or the start of a simulation).
using Instant = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// CLOCK_MONOTONIC. Not for the engine, which is told the time.
inline Instant Now() { return std::chrono::steady_clock::now(); }

}  // namespace memtide

#endif  // MEMTIDE_BASE_CLOCK_H_

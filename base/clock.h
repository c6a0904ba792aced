// Duration and Instant: monotonic time in nanoseconds.
//
// The engine gets the time with each event, and never reads a clock, so that tests and the
// simulation control it. Changes of the wall clock have no effect.
#ifndef MEMTIDE_BASE_CLOCK_H_
#define MEMTIDE_BASE_CLOCK_H_

#include <chrono>

namespace memtide {

using Duration = std::chrono::nanoseconds;
// Time since an arbitrary start: boot, or the start of a simulation.
using Instant = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// Reads CLOCK_MONOTONIC. The engine must not call it.
inline Instant Now() { return std::chrono::steady_clock::now(); }

}  // namespace memtide

#endif  // MEMTIDE_BASE_CLOCK_H_

// NtLoop: the limit of a copy in memory: a plain loop of vector loads and non-temporal stores.
//
// Written for the benchmark and on purpose apart from daemon/device, so that a mistake there cannot
// slow the limit as well. The widest vectors that the CPU has are used. Thread-safe.
#ifndef MEMTIDE_BENCH_NT_LOOP_H_
#define MEMTIDE_BENCH_NT_LOOP_H_

#include "base/bytes.h"

namespace memtide {

// REQUIRES: both are aligned to 64 bytes, size is a multiple of 256, the ranges are disjoint.
void NtLoop(char* to, const char* from, Bytes size);

// "AVX-512", "AVX2" or "SSE2": what NtLoop uses here.
const char* NtLoopName();

}  // namespace memtide

#endif  // MEMTIDE_BENCH_NT_LOOP_H_

// NtLoop is the limit of a copy in memory: a plain loop of vector loads and non-temporal stores.
//
// It shares no code with daemon/device, so that a mistake there cannot slow the limit as well. It
// uses the CPU's widest vectors. Thread-safe.
#ifndef MEMTIDE_BENCH_NT_LOOP_H_
#define MEMTIDE_BENCH_NT_LOOP_H_

#include "base/bytes.h"

namespace memtide {

// REQUIRES: both are aligned to 64 bytes, size is a multiple of 256, the ranges are disjoint.
void NtLoop(char* to, const char* from, Bytes size);

// The instruction set that NtLoop uses on this CPU: "AVX-512", "AVX2" or "SSE2".
const char* NtLoopName();

}  // namespace memtide

#endif  // MEMTIDE_BENCH_NT_LOOP_H_

// ReadLoop is the limit of what reads memory once: a sum of its words.
//
// It uses the CPU's widest vectors and requests what follows in time. Thread-safe.
#ifndef MEMTIDE_BENCH_READ_LOOP_H_
#define MEMTIDE_BENCH_READ_LOOP_H_

#include <cstdint>

#include "base/bytes.h"

namespace memtide {

// The sum of the 64-bit words. REQUIRES: `from` is aligned to 64 bytes, and size is a multiple of
// 256.
uint64_t ReadLoop(const char* from, Bytes size);

}  // namespace memtide

#endif  // MEMTIDE_BENCH_READ_LOOP_H_

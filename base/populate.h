// Populates memory: gives each page of a writable mapping its memory, as writing to it would.
#ifndef MEMTIDE_BASE_POPULATE_H_
#define MEMTIDE_BASE_POPULATE_H_

#include <cstddef>

#include "base/bytes.h"

namespace memtide {

// The memory that one entry of a page directory maps on x86-64.
constexpr Bytes kHugePage = MiB(2);

// How many threads populate together: a quarter of the cores, so that others have the rest. One
// thread alone makes 0.6 to 10 GiB a second, the least in a virtual machine that gets its memory
// from its host meanwhile. Two threads make 1.96 times as much (1.45 and 2.85 GiB/s; 2 CPUs, pages
// of 4 KiB, one memfd of 2 GiB).
size_t PopulatingThreads();

// Returns 0, or the errno of a part that failed; then some pages may be populated. Small ranges
// have fewer threads. REQUIRES: `data` is page-aligned, and `threads` is not zero. Thread-safe.
int PopulateWrite(char* data, size_t size, size_t threads = PopulatingThreads());

}  // namespace memtide

#endif  // MEMTIDE_BASE_POPULATE_H_

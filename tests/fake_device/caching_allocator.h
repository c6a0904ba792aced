// The backend's allocator of ordinary tensors. Like torch's for CUDA, it keeps what is freed until
// EmptyCache, and reuses it at once: all kernels run in one stream, in order. Thread-safe.
#ifndef MEMTIDE_TESTS_FAKE_DEVICE_CACHING_ALLOCATOR_H_
#define MEMTIDE_TESTS_FAKE_DEVICE_CACHING_ALLOCATOR_H_

#include <c10/core/Allocator.h>

#include <cstddef>

namespace memtide::fake_device {

c10::Allocator* TheAllocator();
// Returns unused memory to the fake CUDA, which waits for all kernels.
void EmptyCache();

// Limits what is taken from the fake CUDA from now on; what there is beyond it stays.
void SetLimit(size_t bytes);

struct MemoryUse {
  size_t allocated_bytes;
  size_t reserved_bytes;  // From the fake CUDA.
  size_t peak_allocated_bytes;
  // Allocations that found memory only after the cache was emptied, and those that found none.
  size_t retries, shortages;
};
MemoryUse UsedMemory();

}  // namespace memtide::fake_device

#endif  // MEMTIDE_TESTS_FAKE_DEVICE_CACHING_ALLOCATOR_H_

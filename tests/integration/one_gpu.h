// The fake GPU of tests that share one, and jobs that are too large for it.
#ifndef MEMTIDE_TESTS_INTEGRATION_ONE_GPU_H_
#define MEMTIDE_TESTS_INTEGRATION_ONE_GPU_H_

#include <chrono>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/cuda/fake/fake_cuda.h"
#include "tests/integration/gpu_node.h"

namespace memtide::client {

constexpr Bytes kGpuMemory = MiB(64);
// Three times what the device pool of a GpuNode has.
constexpr uint32_t kChunks = 3 * kGpuSlots;
constexpr Duration kPatience = std::chrono::seconds(60);

inline const SharedFakeCuda shared("memory=64MiB,delay_us=50");

}  // namespace memtide::client

#endif  // MEMTIDE_TESTS_INTEGRATION_ONE_GPU_H_

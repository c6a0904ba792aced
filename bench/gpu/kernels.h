// Kernels: the three kernels that probes run, as PTX that the driver compiles when it loads them.
// On a fake GPU, fake_kernels.cc plays them. For probes: an error ends the process with a message.
#ifndef MEMTIDE_BENCH_GPU_KERNELS_H_
#define MEMTIDE_BENCH_GPU_KERNELS_H_

#include <cuda.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace memtide::bench {

class Kernels {
 public:
  // Loads them into the first GPU's context, which becomes current for the calling thread.
  Kernels();

  // Launch a kernel, and return before it runs. The current context must be the first GPU's.
  //
  // Reads words all over the memory for this long. REQUIRES: `size` is a multiple of 4.
  void Read(CUstream stream, CUdeviceptr memory, size_t size, std::chrono::nanoseconds time) const;
  // Adds one to the 32-bit word again and again for this long.
  void Count(CUstream stream, CUdeviceptr word, std::chrono::nanoseconds time) const;
  // Multiplies and adds in registers, as often in each of many threads. `sink`: 4 bytes, which it
  // may write.
  void Compute(CUstream stream, CUdeviceptr sink, uint64_t rounds) const;

 private:
  decltype(&cuLaunchKernel) launch_ = nullptr;
  CUfunction read_ = nullptr, count_ = nullptr, compute_ = nullptr;
};

}  // namespace memtide::bench

#endif  // MEMTIDE_BENCH_GPU_KERNELS_H_

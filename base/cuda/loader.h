// The seam between this project and the NVIDIA driver's library: base/cuda/libcuda.cc opens the
// real one, and base/cuda/fake answers in its place. Thread-safe.
#ifndef MEMTIDE_BASE_CUDA_LOADER_H_
#define MEMTIDE_BASE_CUDA_LOADER_H_

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace memtide {

// The oldest interface of the driver that has all functions that memtide needs, and the driver that
// brought it.
inline constexpr int kOldestCuda = 12000;
inline constexpr int kOldestDriver = 525;

// Looks up a function of the driver by its name and version. It has this type since kOldestCuda.
using CuGetProcAddress = decltype(&cuGetProcAddress);

// NOT_FOUND: no driver is installed. FAILED_PRECONDITION: it is older than kOldestDriver.
absl::StatusOr<CuGetProcAddress> FindCuGetProcAddress();

// The statuses of that.
absl::Status NoCudaDriver(const char* why);
// `version`: as cuDriverGetVersion answers; zero: unknown.
absl::Status CudaDriverTooOld(int version);

}  // namespace memtide

#endif  // MEMTIDE_BASE_CUDA_LOADER_H_

// The node's GPU, for a daemon that was built with CUDA or without: a build has one of two bodies.
//
// Every function may be called from any thread. Errors say what to do.
#ifndef MEMTIDE_DAEMON_DEVICE_OPEN_CUDA_H_
#define MEMTIDE_DAEMON_DEVICE_OPEN_CUDA_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/gpu.h"

namespace memtide {

// "CUDA 13.0", or "no CUDA": for --version.
std::string CudaOfThisBuild();

// `device`: an ordinal, or the beginning of a GPU-uuid. Empty: the first. Creates a context on the
// GPU, which takes a moment. NOT_FOUND: there is nothing to mend, as there is no GPU, no driver,
// none that is visible, or no CUDA in this build. FAILED_PRECONDITION: there is no such one, or its
// driver is too old. UNAVAILABLE: there is one, and it does not answer.
absl::StatusOr<Gpu> InspectGpu(const std::string& device);

// Descriptions of all of them, by ordinal. Creates no context. Errors as of InspectGpu.
absl::StatusOr<std::vector<std::string>> ListGpus();

// `warn`: see CudaDevice.
absl::StatusOr<std::unique_ptr<Device>> OpenCuda(const std::string& device,
                                                 std::function<void(const std::string& line)> warn);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_OPEN_CUDA_H_

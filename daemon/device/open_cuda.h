// Opens the node's GPUs, in builds with CUDA and without: Bazel picks one of two bodies.
//
// Thread safety: thread-safe. Errors say what to do.
#ifndef MEMTIDE_DAEMON_DEVICE_OPEN_CUDA_H_
#define MEMTIDE_DAEMON_DEVICE_OPEN_CUDA_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "daemon/device/device.h"
#include "daemon/device/gpu.h"

namespace memtide {

// "CUDA", or "no CUDA": for --version.
std::string CudaOfThisBuild();

// `device`: an ordinal, or the beginning of a GPU-uuid or MIG-uuid. Empty: the first. Creates a
// context on the GPU, which takes a moment. NOT_FOUND: the node can do without, as there is no GPU,
// no driver, no visible GPU, or no CUDA in this build. FAILED_PRECONDITION: no GPU matches
// `device`, or the driver is too old, or the compute mode forbids a second process. UNAVAILABLE:
// the GPU exists and does not respond.
absl::StatusOr<Gpu> InspectGpu(const std::string& device);

// The uuids of all GPUs, by ordinal. Creates no context. Errors as for InspectGpu.
absl::StatusOr<std::vector<std::string>> GpuUuids();
// Descriptions of all GPUs, by ordinal, each with what forbids its use, and followed by lines that
// begin with "  " and name the daemons that have memory of it. Creates no context. Errors as for
// InspectGpu.
absl::StatusOr<std::vector<std::string>> ListGpus();

// What each GPU does of what memtide relies on, a line each (first_use/first_use.h), followed by
// lines that begin with "  " and say what memtide does instead. Asks the GPUs that memtide has not
// met, a second or two each. Errors as for InspectGpu.
absl::StatusOr<std::vector<std::string>> AskGpus();

// Runs the part of asking a GPU for which the daemon has started its own program with two arguments
// (first_use/helper_process.h), and returns the exit status. nullopt: `flag` is none of these
// parts.
absl::optional<int> RunPartOfAsking(const std::string& flag, const std::string& ordinal);

// Opens the GPUs that `devices` names, which share the host memory that they pin. Asks a GPU that
// memtide has not met first, which takes a second or two. `warn`: also gets what memtide does
// instead where an answer is no. See CudaDevice.
std::vector<absl::StatusOr<std::unique_ptr<Device>>> OpenCuda(
    const std::vector<std::string>& devices, std::function<void(const std::string& line)> warn);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_OPEN_CUDA_H_

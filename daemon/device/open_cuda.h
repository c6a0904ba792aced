// Opens the node's GPUs, in builds with CUDA and without: Bazel picks one of two bodies. CUDA is
// used by processes that these functions start, and by ListGpus and AskGpus, never by the daemon.
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

// `device`: an ordinal, or the beginning of a GPU-uuid or MIG-uuid. Empty: the first. Another
// process has a context on the GPU meanwhile, which takes a moment. NOT_FOUND: the node can do
// without, as there is no GPU, no driver, no visible GPU, or no CUDA in this build.
// FAILED_PRECONDITION: no GPU matches `device`, or the driver is too old, or the compute mode
// forbids a second process. UNAVAILABLE: the GPU exists and does not respond.
absl::StatusOr<Gpu> InspectGpu(const std::string& device);

// The uuids of all GPUs, by ordinal. Creates no context. Errors as for InspectGpu.
absl::StatusOr<std::vector<std::string>> GpuUuids();
// Descriptions of all GPUs, by ordinal, each with what forbids its use, and followed by lines that
// begin with "  " and name the daemons that have memory of it. Creates no context. Errors as for
// InspectGpu.
absl::StatusOr<std::vector<std::string>> ListGpus();

// A line for each GPU with the abilities that memtide relies on (first_use/first_use.h). Lines that
// begin with "  " follow it, and say what memtide does instead of missing ones. Asks the GPUs that
// memtide has not met, a second or two each. Errors as for InspectGpu.
absl::StatusOr<std::vector<std::string>> AskGpus();

// Runs what this program does as a process that the daemon has started with two arguments, a flag
// and another (remote/helper_process.h), and returns the exit status. nullopt: `flag` is none of
// these.
absl::optional<int> RunGpuProcess(const std::string& flag, const std::string& argument);

// Opens the GPU in a process of its own (remote/remote_device.h), which is started again when the
// GPU, or the process, fails. Asks a GPU that memtide has not met first, which takes a second or
// two. `warn`: also gets what memtide does instead where an answer is no. See CudaDevice.
absl::StatusOr<std::unique_ptr<Device>> OpenCuda(const std::string& device,
                                                 std::function<void(const std::string& line)> warn);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_OPEN_CUDA_H_

// The body of open_cuda.h where there was no CUDA toolkit to build with.
#include "daemon/device/open_cuda.h"

namespace memtide {
namespace {

absl::Status WithoutCuda() {
  return absl::NotFoundError(
      "this memtided was built without CUDA; build it where a CUDA toolkit is (CUDA_HOME), or use "
      "--device=emulated or --device=none");
}

}  // namespace

std::string CudaOfThisBuild() { return "no CUDA"; }

absl::StatusOr<Gpu> InspectGpu(const std::string& device) { return WithoutCuda(); }

absl::StatusOr<std::vector<std::string>> GpuUuids() { return WithoutCuda(); }

absl::StatusOr<std::vector<std::string>> ListGpus() { return WithoutCuda(); }

absl::StatusOr<std::vector<std::string>> AskGpus() { return WithoutCuda(); }

absl::optional<int> RunGpuProcess(const std::string& flag, const std::string& argument) {
  return absl::nullopt;
}

absl::StatusOr<std::unique_ptr<Device>> OpenCuda(
    const std::string& device, std::function<void(const std::string& line)> warn) {
  return WithoutCuda();
}

}  // namespace memtide

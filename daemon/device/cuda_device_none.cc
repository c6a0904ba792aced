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

absl::optional<int> RunPartOfAsking(const std::string& flag, const std::string& ordinal) {
  return absl::nullopt;
}

std::vector<absl::StatusOr<std::unique_ptr<Device>>> OpenCuda(
    const std::vector<std::string>& devices, std::function<void(const std::string& line)> warn) {
  std::vector<absl::StatusOr<std::unique_ptr<Device>>> opened;
  for (size_t i = 0; i < devices.size(); ++i) opened.emplace_back(WithoutCuda());
  return opened;
}

}  // namespace memtide

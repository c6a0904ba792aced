#include "daemon/device/open_cuda.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/device/cuda_device.h"

namespace memtide {
namespace {

std::string Describe(const CudaDeviceFacts& facts) {
  return absl::StrCat(facts.ordinal, " (", facts.name, ", ", FormatBytes(facts.memory), ", ",
                      FormatCudaUuid(facts.uuid), ")");
}

// Whether the error means that the node has no driver or no visible GPU.
bool IsWithoutGpu() {
  int count = 0, driver_version = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  // Clears the error, so that it does not surface in a later call.
  cudaGetLastError();
  if (error == cudaErrorNoDevice) return true;
  // CUDA returns the same error if the driver is too old.
  return error == cudaErrorInsufficientDriver &&
         cudaDriverGetVersion(&driver_version) == cudaSuccess && driver_version == 0;
}

absl::StatusOr<std::vector<CudaDeviceFacts>> Gpus() {
  absl::StatusOr<std::vector<CudaDeviceFacts>> devices = CudaDevices();
  if (!devices.ok() && IsWithoutGpu()) return absl::NotFoundError(devices.status().message());
  return devices;
}

}  // namespace

std::string CudaOfThisBuild() {
  return absl::StrCat("CUDA ", CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10);
}

absl::StatusOr<Gpu> InspectGpu(const std::string& device) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<CudaDeviceFacts> devices, Gpus());
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDeviceFacts chosen, ChooseCudaDevice(devices, device));
  Gpu gpu;
  gpu.uuid = FormatCudaUuid(chosen.uuid);
  gpu.description = Describe(chosen);
  for (const CudaDeviceFacts& facts : devices) {
    if (facts.ordinal != chosen.ordinal) gpu.others.push_back(Describe(facts));
  }
  MEMTIDE_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(chosen.ordinal), absl::StrCat("cudaSetDevice ", gpu.description)));
  size_t free = 0, total = 0;
  MEMTIDE_RETURN_IF_ERROR(
      CudaStatus(cudaMemGetInfo(&free, &total), absl::StrCat("cudaMemGetInfo ", gpu.description)));
  gpu.free = Bytes(free);
  gpu.total = Bytes(total);
  return gpu;
}

absl::StatusOr<std::vector<std::string>> ListGpus() {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<CudaDeviceFacts> devices, Gpus());
  std::vector<std::string> descriptions;
  for (const CudaDeviceFacts& facts : devices) descriptions.push_back(Describe(facts));
  return descriptions;
}

absl::StatusOr<std::unique_ptr<Device>> OpenCuda(
    const std::string& device, std::function<void(const std::string& line)> warn) {
  CudaDeviceOptions options;
  options.device = device;
  options.warn = std::move(warn);
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> opened, CudaDevice::Open(options));
  return std::unique_ptr<Device>(std::move(opened));
}

}  // namespace memtide

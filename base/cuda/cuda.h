// CUDA as this project uses it: the driver's functions, and both interfaces' errors as Status.
//
// The runtime is called by its own names. It is linked statically and looks for the driver when it
// is first called, so that one binary starts with and without a GPU; for the same reason driver
// functions are asked of the runtime and never linked. Tests link base/cuda/fake in its place.
// Thread-safe.
//
// Errors become Status here and nowhere else: out of memory is RESOURCE_EXHAUSTED; no GPU, no
// driver or one that is too old FAILED_PRECONDITION, with what to do; a sticky error, after which
// every call of this process fails until cudaDeviceReset, UNAVAILABLE; all others INTERNAL.
#ifndef MEMTIDE_BASE_CUDA_CUDA_H_
#define MEMTIDE_BASE_CUDA_CUDA_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"

namespace memtide {

// Functions of the driver, by their names without "cu".
struct CudaDriver {
  decltype(&cuGetErrorName) GetErrorName = nullptr;
  decltype(&cuDeviceGetAttribute) DeviceGetAttribute = nullptr;
  decltype(&cuPointerGetAttribute) PointerGetAttribute = nullptr;
  decltype(&cuCtxGetCurrent) CtxGetCurrent = nullptr;
  decltype(&cuCtxPushCurrent) CtxPushCurrent = nullptr;
  decltype(&cuCtxPopCurrent) CtxPopCurrent = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) DevicePrimaryCtxRetain = nullptr;
  decltype(&cuDevicePrimaryCtxRelease) DevicePrimaryCtxRelease = nullptr;
  decltype(&cuEventQuery) EventQuery = nullptr;
  decltype(&cuEventSynchronize) EventSynchronize = nullptr;
  // Whether the driver has the functions below, since CUDA 11.3; null without.
  bool maps_memory = false;
  decltype(&cuMemGetAllocationGranularity) MemGetAllocationGranularity = nullptr;
  decltype(&cuMemCreate) MemCreate = nullptr;
  decltype(&cuMemRelease) MemRelease = nullptr;
  decltype(&cuMemExportToShareableHandle) MemExportToShareableHandle = nullptr;
  decltype(&cuMemImportFromShareableHandle) MemImportFromShareableHandle = nullptr;
  decltype(&cuMemAddressReserve) MemAddressReserve = nullptr;
  decltype(&cuMemAddressFree) MemAddressFree = nullptr;
  decltype(&cuMemMap) MemMap = nullptr;
  decltype(&cuMemUnmap) MemUnmap = nullptr;
  decltype(&cuMemSetAccess) MemSetAccess = nullptr;
  // Since CUDA 12.5; null with older drivers.
  decltype(&cuCtxRecordEvent) CtxRecordEvent = nullptr;
};

// The driver's functions, looked up until they are found. FAILED_PRECONDITION: there is no usable
// GPU, no driver, or none that this release knows. UNAVAILABLE: there is one, and it does not
// answer.
absl::StatusOr<const CudaDriver*> LoadCudaDriver();

// OK, or what failed: "cudaHostRegister of 64 MiB". Clears the runtime's pending error, so that it
// surfaces nowhere else.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);
absl::Status CudaStatus(CUresult error, absl::string_view what);

// 16 bytes that name a GPU on every machine and to every process.
using CudaUuid = std::array<char, 16>;
// "GPU-01234567-89ab-...", as nvidia-smi and CUDA_VISIBLE_DEVICES have it.
std::string FormatCudaUuid(const CudaUuid& uuid);

// A GPU that this process can see.
struct CudaDeviceFacts {
  int ordinal = 0;
  CudaUuid uuid = {};
  std::string name;
  Bytes memory;              // All of it.
  bool descriptors = false;  // Memory by cuMemCreate can be passed as POSIX descriptors.
  bool legacy_ipc = false;
};
// FAILED_PRECONDITION: none, and why. Ordinals as CUDA_VISIBLE_DEVICES leaves them.
absl::StatusOr<std::vector<CudaDeviceFacts>> CudaDevices();

}  // namespace memtide

#endif  // MEMTIDE_BASE_CUDA_CUDA_H_

// CUDA as this project uses it: the driver's functions, and the errors of driver and runtime as
// Status.
//
// The CUDA runtime is called by its own names. It is linked statically and looks for the driver at
// its first call, so one binary starts with and without a GPU. For the same reason the driver's
// functions are looked up through the runtime and never linked. Tests link base/cuda/fake instead
// of the runtime. Thread-safe.
//
// CUDA errors become Status here and nowhere else: out of memory is RESOURCE_EXHAUSTED; no GPU, no
// driver or one that is too old is FAILED_PRECONDITION, with a remedy; a sticky error, after which
// every call of this process fails until cudaDeviceReset, is UNAVAILABLE; all others are INTERNAL.
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

// The driver's functions, by their names without "cu".
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
  // Whether the driver has the functions below (CUDA 11.3 or newer); otherwise they are null.
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
  // CUDA 12.5 or newer; null with older drivers.
  decltype(&cuCtxRecordEvent) CtxRecordEvent = nullptr;
};

// Returns the driver's functions; a failed lookup is repeated by the next call.
// FAILED_PRECONDITION: there is no usable GPU, no driver, or one that is too old. UNAVAILABLE: the
// driver does not answer.
absl::StatusOr<const CudaDriver*> LoadCudaDriver();

// Converts a CUDA error; `what` names the failed operation, such as "cudaHostRegister of 64 MiB".
// Clears the runtime's pending error, so that it does not surface in a later call.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);
absl::Status CudaStatus(CUresult error, absl::string_view what);

// The 16 bytes that identify a GPU worldwide.
using CudaUuid = std::array<char, 16>;
// Formats as nvidia-smi and CUDA_VISIBLE_DEVICES do: "GPU-01234567-89ab-...".
std::string FormatCudaUuid(const CudaUuid& uuid);

// A GPU that this process can see.
struct CudaDeviceFacts {
  int ordinal = 0;
  CudaUuid uuid = {};
  std::string name;
  Bytes memory;              // Total, used or free.
  bool descriptors = false;  // Memory by cuMemCreate can be passed as POSIX descriptors.
  bool legacy_ipc = false;
};
// Lists the GPUs with the ordinals that CUDA_VISIBLE_DEVICES gives them. FAILED_PRECONDITION: there
// is none; the message names the reason.
absl::StatusOr<std::vector<CudaDeviceFacts>> CudaDevices();

}  // namespace memtide

#endif  // MEMTIDE_BASE_CUDA_CUDA_H_

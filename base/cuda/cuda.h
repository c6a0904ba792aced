// CUDA as this project uses it: the driver's functions, and their errors as Status.
//
// Only the driver's interface is used, and nothing of a CUDA toolkit is linked. libcuda.so.1 is
// opened at the first use and its functions are looked up by name and version (loader.h), so one
// binary starts with and without a GPU, and works with every driver since CUDA 12.0 (525).
// Functions that came later are optional. Tests link base/cuda/fake in place of the driver's
// library. Thread-safe.
//
// CUDA errors become Status here and nowhere else: out of memory is RESOURCE_EXHAUSTED; no GPU or
// no driver is NOT_FOUND; a driver that is too old, or a GPU that this process may not use, is
// FAILED_PRECONDITION, with a remedy; a sticky error, after which every call of this process fails
// until the GPU is reset, is UNAVAILABLE; all others are INTERNAL.
#ifndef MEMTIDE_BASE_CUDA_CUDA_H_
#define MEMTIDE_BASE_CUDA_CUDA_H_

#include <cuda.h>

#include <array>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/bytes.h"

namespace memtide {

// CUDA's virtual memory management (VMM) maps memory at reserved addresses and passes it to other
// processes as descriptors. The members are its functions, by their names without "cuMem".
struct CudaVmm {
  decltype(&cuMemGetAllocationGranularity) GetAllocationGranularity = nullptr;
  decltype(&cuMemCreate) Create = nullptr;
  decltype(&cuMemRelease) Release = nullptr;
  decltype(&cuMemExportToShareableHandle) ExportToShareableHandle = nullptr;
  decltype(&cuMemImportFromShareableHandle) ImportFromShareableHandle = nullptr;
  decltype(&cuMemAddressReserve) AddressReserve = nullptr;
  decltype(&cuMemAddressFree) AddressFree = nullptr;
  decltype(&cuMemMap) Map = nullptr;
  decltype(&cuMemUnmap) Unmap = nullptr;
  decltype(&cuMemSetAccess) SetAccess = nullptr;
};

// An event is a point in the work of a stream. The members are functions of events, by their names
// without "cuEvent".
struct CudaEvents {
  decltype(&cuEventCreate) Create = nullptr;
  decltype(&cuEventDestroy) Destroy = nullptr;
  decltype(&cuEventRecord) Record = nullptr;
  decltype(&cuEventQuery) Query = nullptr;
  decltype(&cuEventSynchronize) Synchronize = nullptr;
  // cuCtxRecordEvent, which records the work of all streams of a context. CUDA 12.5 or newer; null
  // with older drivers.
  CUresult (*RecordContext)(CUcontext context, CUevent event) = nullptr;
};

// The driver has all functions: those of the two above as members, and others by their names
// without "cu".
struct CudaDriver {
  decltype(&cuInit) Init = nullptr;
  decltype(&cuGetErrorName) GetErrorName = nullptr;
  decltype(&cuGetErrorString) GetErrorString = nullptr;
  decltype(&cuDeviceGetCount) DeviceGetCount = nullptr;
  decltype(&cuDeviceGetName) DeviceGetName = nullptr;
  // The UUID of a MIG instance, where the device is one, and that of the GPU it is a part of.
  CUresult (*DeviceGetUuid)(CUuuid* uuid, CUdevice device) = nullptr;
  CUresult (*DeviceGetUuidOfWhole)(CUuuid* uuid, CUdevice device) = nullptr;
  decltype(&cuDeviceTotalMem) DeviceTotalMem = nullptr;
  decltype(&cuDeviceGetAttribute) DeviceGetAttribute = nullptr;
  decltype(&cuDeviceGetPCIBusId) DeviceGetPCIBusId = nullptr;
  decltype(&cuPointerGetAttribute) PointerGetAttribute = nullptr;

  decltype(&cuCtxGetCurrent) CtxGetCurrent = nullptr;
  decltype(&cuCtxSetCurrent) CtxSetCurrent = nullptr;
  decltype(&cuCtxPushCurrent) CtxPushCurrent = nullptr;
  decltype(&cuCtxPopCurrent) CtxPopCurrent = nullptr;
  decltype(&cuCtxSynchronize) CtxSynchronize = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) DevicePrimaryCtxRetain = nullptr;
  decltype(&cuDevicePrimaryCtxRelease) DevicePrimaryCtxRelease = nullptr;
  decltype(&cuDevicePrimaryCtxReset) DevicePrimaryCtxReset = nullptr;

  decltype(&cuMemGetInfo) MemGetInfo = nullptr;
  decltype(&cuMemAlloc) MemAlloc = nullptr;
  decltype(&cuMemFree) MemFree = nullptr;
  decltype(&cuMemHostAlloc) MemHostAlloc = nullptr;
  decltype(&cuMemFreeHost) MemFreeHost = nullptr;
  decltype(&cuMemHostRegister) MemHostRegister = nullptr;
  decltype(&cuMemHostUnregister) MemHostUnregister = nullptr;
  decltype(&cuIpcGetMemHandle) IpcGetMemHandle = nullptr;
  decltype(&cuIpcOpenMemHandle) IpcOpenMemHandle = nullptr;
  decltype(&cuIpcCloseMemHandle) IpcCloseMemHandle = nullptr;

  decltype(&cuMemcpyHtoDAsync) MemcpyHtoDAsync = nullptr;
  decltype(&cuMemcpyDtoHAsync) MemcpyDtoHAsync = nullptr;
  decltype(&cuMemsetD8Async) MemsetD8Async = nullptr;
  decltype(&cuStreamCreate) StreamCreate = nullptr;
  decltype(&cuStreamDestroy) StreamDestroy = nullptr;
  decltype(&cuStreamSynchronize) StreamSynchronize = nullptr;
  decltype(&cuStreamIsCapturing) StreamIsCapturing = nullptr;

  CudaVmm vmm;
  CudaEvents events;
};

// Returns the initialized driver's functions; a failed lookup is repeated by the next call.
// NOT_FOUND: there is no driver, or no GPU that this process can see. FAILED_PRECONDITION: the
// driver is too old or cannot be used. UNAVAILABLE: it does not answer.
absl::StatusOr<const CudaDriver*> LoadCudaDriver();

// Converts a CUDA error; `what` names the failed operation, such as "cuMemHostRegister of 64 MiB".
absl::Status CudaStatus(CUresult error, absl::string_view what);
// Whether the status is CudaStatus of an uncorrectable error of the GPU's memory (ECC).
bool IsCudaMemoryError(const absl::Status& status);

// Makes the GPU's primary context current for the calling thread. It is the context that the CUDA
// runtime uses, and PyTorch with it. The process keeps it from the first call until ResetGpu.
absl::Status UseGpu(int ordinal);
// Destroys all that this process has in the GPU's primary context. The next UseGpu makes it anew.
// REQUIRES: no other thread uses the context.
absl::Status ResetGpu(int ordinal);

// The 16 bytes that identify a GPU, or a MIG instance of one, worldwide.
using CudaUuid = std::array<char, 16>;
// Formats as nvidia-smi and CUDA_VISIBLE_DEVICES do: "GPU-01234567-89ab-...".
std::string FormatCudaUuid(const CudaUuid& uuid);

// How many processes may have a context on a GPU (nvidia-smi -c).
enum class CudaComputeMode { kShared, kExclusiveProcess, kProhibited };

// A GPU, or a MIG instance of one, that this process can see.
struct CudaDeviceFacts {
  int ordinal = 0;
  CudaUuid uuid = {};
  bool mig = false;
  std::string name;
  Bytes memory;              // Total, used or free.
  bool descriptors = false;  // Memory by cuMemCreate can be passed as POSIX descriptors.
  bool legacy_ipc = false;
  CudaComputeMode compute_mode = CudaComputeMode::kShared;
  bool mps = false;  // A server of CUDA's MPS owns the contexts of all processes.
  // The GPU reads host memory by the CPU's page tables (GH200, GB200, DGX Spark): registering such
  // memory pins nothing.
  bool coherent = false;
  // The host's NUMA node that is closest to the GPU. Absent: the driver, or the machine, has no
  // such number.
  absl::optional<int> numa_node;
  std::string pci_id;  // "0000:17:00.0", as in sysfs.

  // "GPU-..." or "MIG-...".
  std::string FormatUuid() const;
};
// Lists the GPUs with the ordinals that CUDA_VISIBLE_DEVICES gives them. Creates no context.
// Errors: those of LoadCudaDriver.
absl::StatusOr<std::vector<CudaDeviceFacts>> CudaDevices();

// FAILED_PRECONDITION, with the remedy: the compute mode of the GPU keeps a second process, which
// memtide has, from using it.
absl::Status CheckComputeMode(const CudaDeviceFacts& facts);

}  // namespace memtide

#endif  // MEMTIDE_BASE_CUDA_CUDA_H_

// The lookup of driver functions by name, and those driver functions that do not map memory.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/cuda/fake/capture.h"
#include "base/cuda/fake/modules.h"
#include "base/cuda/fake/process.h"
#include "base/cuda/fake/streams.h"
#include "base/cuda/fake/vmm.h"
#include "base/cuda/loader.h"

namespace memtide::fake_cuda {
namespace {

// As CUDA before 11.4 answers: for a MIG instance the UUID is that of the GPU it is a part of.
CUresult DeviceGetUuidOfWhole(CUuuid* uuid, CUdevice device) {
  Process& process = TheProcess();
  Call call(&process, "cuDeviceGetUuid");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (!process.IsOrdinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  const CudaUuid known = UuidOf(process.settings, process.visible[device]);
  std::memcpy(uuid->bytes, known.data(), known.size());
  if (process.settings.mig) uuid->bytes[0] = 'w';
  return CUDA_SUCCESS;
}

CUresult DeviceGetUuid(CUuuid* uuid, CUdevice device) {
  Process& process = TheProcess();
  Call call(&process, "cuDeviceGetUuid");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (!process.IsOrdinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  const CudaUuid known = UuidOf(process.settings, process.visible[device]);
  std::memcpy(uuid->bytes, known.data(), known.size());
  return CUDA_SUCCESS;
}

// Reports host memory, which it is: programs that query it may then access the bytes directly. Or,
// if only kernels may, a type that CUDA reports for no device memory (client/cuda/cuda_space.cc).
CUresult PointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  Process& process = TheProcess();
  Call call(&process, "cuPointerGetAttribute");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE || !process.Overlaps(address, 1)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool on_cpu = process.settings.tensors == Tensors::kOnCpu;
  const unsigned type = on_cpu ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_UNIFIED;
  std::memcpy(data, &type, sizeof(type));
  return CUDA_SUCCESS;
}

CUresult CtxRecordEvent(CUcontext context, CUevent event) {
  Process& process = TheProcess();
  Call call(&process, "cuCtxRecordEvent");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto found = process.events.find(event);
  if (found == process.events.end()) return CUDA_ERROR_INVALID_HANDLE;
  if (InvalidateCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  found->second->last = MarkAll(&process);
  return CUDA_SUCCESS;
}

struct Function {
  const char* name;
  void* address;
  int version;  // The interface version that brought it.
};

template <typename Signature>
void* AddressOf(Signature* function) {
  return reinterpret_cast<void*>(function);
}

void* Find(const std::string& name, int version) {
#define MEMTIDE_FUNCTION(name) \
  { #name, AddressOf(&name), 2000 }
#define MEMTIDE_OF_FAKE(name, version) \
  { "cu" #name, AddressOf(&name), version }
  static const Function functions[] = {
      MEMTIDE_FUNCTION(cuInit),
      MEMTIDE_FUNCTION(cuGetErrorName),
      MEMTIDE_FUNCTION(cuGetErrorString),
      MEMTIDE_FUNCTION(cuDeviceGetCount),
      MEMTIDE_FUNCTION(cuDeviceGetName),
      MEMTIDE_FUNCTION(cuDeviceTotalMem),
      MEMTIDE_FUNCTION(cuDeviceGetAttribute),
      MEMTIDE_FUNCTION(cuDeviceGetPCIBusId),
      {"cuDeviceGetUuid", AddressOf(&DeviceGetUuid), 11040},
      {"cuDeviceGetUuid", AddressOf(&DeviceGetUuidOfWhole), 9020},
      MEMTIDE_FUNCTION(cuCtxGetCurrent),
      MEMTIDE_FUNCTION(cuCtxSetCurrent),
      MEMTIDE_FUNCTION(cuCtxPushCurrent),
      MEMTIDE_FUNCTION(cuCtxPopCurrent),
      MEMTIDE_FUNCTION(cuCtxSynchronize),
      MEMTIDE_FUNCTION(cuDevicePrimaryCtxRetain),
      MEMTIDE_FUNCTION(cuDevicePrimaryCtxRelease),
      MEMTIDE_FUNCTION(cuDevicePrimaryCtxReset),
      MEMTIDE_FUNCTION(cuMemGetInfo),
      MEMTIDE_FUNCTION(cuMemAlloc),
      MEMTIDE_FUNCTION(cuMemFree),
      MEMTIDE_FUNCTION(cuMemHostAlloc),
      MEMTIDE_FUNCTION(cuMemFreeHost),
      MEMTIDE_FUNCTION(cuMemHostRegister),
      MEMTIDE_FUNCTION(cuMemHostUnregister),
      MEMTIDE_FUNCTION(cuIpcGetMemHandle),
      MEMTIDE_FUNCTION(cuIpcOpenMemHandle),
      MEMTIDE_FUNCTION(cuIpcCloseMemHandle),
      MEMTIDE_FUNCTION(cuMemcpyHtoDAsync),
      MEMTIDE_FUNCTION(cuMemcpyDtoHAsync),
      MEMTIDE_FUNCTION(cuMemsetD8Async),
      MEMTIDE_FUNCTION(cuStreamCreate),
      MEMTIDE_FUNCTION(cuStreamDestroy),
      MEMTIDE_FUNCTION(cuStreamSynchronize),
      MEMTIDE_FUNCTION(cuEventCreate),
      MEMTIDE_FUNCTION(cuEventDestroy),
      MEMTIDE_FUNCTION(cuEventRecord),
      MEMTIDE_FUNCTION(cuEventQuery),
      MEMTIDE_FUNCTION(cuEventSynchronize),
      MEMTIDE_OF_FAKE(PointerGetAttribute, 4000),
      MEMTIDE_OF_FAKE(CtxRecordEvent, 12050),
      MEMTIDE_OF_FAKE(StreamIsCapturing, 10000),
      MEMTIDE_OF_FAKE(MemGetAllocationGranularity, 10020),
      MEMTIDE_OF_FAKE(MemCreate, 10020),
      MEMTIDE_OF_FAKE(MemRelease, 10020),
      MEMTIDE_OF_FAKE(MemExportToShareableHandle, 10020),
      MEMTIDE_OF_FAKE(MemImportFromShareableHandle, 10020),
      MEMTIDE_OF_FAKE(MemAddressReserve, 10020),
      MEMTIDE_OF_FAKE(MemAddressFree, 10020),
      MEMTIDE_OF_FAKE(MemMap, 10020),
      MEMTIDE_OF_FAKE(MemUnmap, 10020),
      MEMTIDE_OF_FAKE(MemSetAccess, 10020),
      MEMTIDE_OF_FAKE(ModuleLoadData, 2000),
      MEMTIDE_OF_FAKE(ModuleGetFunction, 2000),
      MEMTIDE_OF_FAKE(LaunchKernel, 4000),
  };
#undef MEMTIDE_FUNCTION
#undef MEMTIDE_OF_FAKE
  for (const Function& function : functions) {
    // The newest form of a function is listed first.
    if (name == function.name && version >= function.version) return function.address;
  }
  return nullptr;
}

// The interface that the driver has: that of the oldest that memtide works with, or the newest.
int VersionOf(const Settings& settings) {
  return settings.driver == Driver::kNoContextEvents ? kOldestCuda : 13000;
}

}  // namespace
}  // namespace memtide::fake_cuda

extern "C" CUresult cuGetProcAddress(const char* symbol, void** function, int version,
                                     cuuint64_t flags, CUdriverProcAddressQueryResult* result) {
  const int known = memtide::fake_cuda::VersionOf(memtide::fake_cuda::TheProcess().settings);
  *function = memtide::fake_cuda::Find(symbol, std::min(version, known));
  *result =
      *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

absl::StatusOr<memtide::CuGetProcAddress> memtide::FindCuGetProcAddress() {
  switch (fake_cuda::TheProcess().settings.driver) {
    case fake_cuda::Driver::kNone:
      return NoCudaDriver("the fake plays that");
    case fake_cuda::Driver::kTooOld:
      return CudaDriverTooOld(11080);
    default:
      return &cuGetProcAddress;
  }
}

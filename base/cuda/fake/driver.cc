// The lookup of driver functions by name, and those driver functions that do not map memory.
#include <cstring>
#include <string>
#include <vector>

#include "base/cuda/fake/process.h"
#include "base/cuda/fake/streams.h"
#include "base/cuda/fake/vmm.h"

namespace memtide::fake_cuda {
namespace {

CUresult GetErrorName(CUresult error, const char** name) {
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

CUresult DeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  Process& process = TheProcess();
  Call call(&process, "cuDeviceGetAttribute");
  if (call.refusal() != cudaSuccess) return static_cast<CUresult>(call.refusal());
  if (device < 0 || device >= static_cast<int>(process.visible.size())) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const bool knows = process.settings.driver != Driver::kOld;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      *value = knows ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      *value = knows && process.settings.descriptors ? 1 : 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Reports host memory, which it is: programs that query it may then access the bytes directly.
CUresult PointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  Process& process = TheProcess();
  Call call(&process, "cuPointerGetAttribute");
  if (call.refusal() != cudaSuccess) return static_cast<CUresult>(call.refusal());
  if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE || !process.Overlaps(address, 1)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const unsigned type = CU_MEMORYTYPE_HOST;
  std::memcpy(data, &type, sizeof(type));
  return CUDA_SUCCESS;
}

// The primary context of each ordinal. Null for a thread that has selected no device.
CUcontext ContextOf(int ordinal) {
  return reinterpret_cast<CUcontext>(static_cast<intptr_t>(ordinal) + 1);
}

CUresult CtxGetCurrent(CUcontext* context) {
  Process& process = TheProcess();
  Call call(&process, "cuCtxGetCurrent");
  if (call.refusal() != cudaSuccess) return static_cast<CUresult>(call.refusal());
  *context = t_has_context ? ContextOf(t_ordinal) : nullptr;
  return CUDA_SUCCESS;
}

CUresult DevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Process& process = TheProcess();
  Call call(&process, "cuDevicePrimaryCtxRetain");
  if (call.refusal() != cudaSuccess) return static_cast<CUresult>(call.refusal());
  if (device < 0 || device >= static_cast<int>(process.visible.size())) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *context = ContextOf(device);
  return CUDA_SUCCESS;
}

CUresult DevicePrimaryCtxRelease(CUdevice device) {
  Process& process = TheProcess();
  const Call call(&process, "cuDevicePrimaryCtxRelease");
  return static_cast<CUresult>(call.refusal());
}

struct Pushed {
  int ordinal;
  bool has_context;
};
thread_local std::vector<Pushed> t_pushed;  // The context that was current before each push.

CUresult CtxPushCurrent(CUcontext context) {
  Process& process = TheProcess();
  Call call(&process, "cuCtxPushCurrent");
  if (call.refusal() != cudaSuccess) return static_cast<CUresult>(call.refusal());
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  t_pushed.push_back({t_ordinal, t_has_context});
  t_ordinal = static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
  t_has_context = true;
  return CUDA_SUCCESS;
}

CUresult CtxPopCurrent(CUcontext* context) {
  Process& process = TheProcess();
  Call call(&process, "cuCtxPopCurrent");
  if (call.refusal() != cudaSuccess) return static_cast<CUresult>(call.refusal());
  if (t_pushed.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = ContextOf(t_ordinal);
  t_ordinal = t_pushed.back().ordinal;
  t_has_context = t_pushed.back().has_context;
  t_pushed.pop_back();
  return CUDA_SUCCESS;
}

// Events of the runtime and of the driver are the same objects.
CUresult EventQuery(CUevent event) { return static_cast<CUresult>(cudaEventQuery(event)); }

CUresult CtxRecordEvent(CUcontext context, CUevent event) {
  Process& process = TheProcess();
  Call call(&process, "cuCtxRecordEvent");
  if (call.refusal() != cudaSuccess) return static_cast<CUresult>(call.refusal());
  const auto found = process.events.find(event);
  if (found == process.events.end()) return CUDA_ERROR_INVALID_HANDLE;
  found->second->last = MarkAll(&process);
  return CUDA_SUCCESS;
}

struct Function {
  const char* name;
  void* address;
  Driver first;  // The oldest driver that has it.
};

void* Find(const std::string& name, Driver driver) {
#define MEMTIDE_FUNCTION(name, first) \
  { "cu" #name, reinterpret_cast<void*>(&name), first }
  static const Function functions[] = {
      MEMTIDE_FUNCTION(GetErrorName, Driver::kOld),
      MEMTIDE_FUNCTION(DeviceGetAttribute, Driver::kOld),
      MEMTIDE_FUNCTION(PointerGetAttribute, Driver::kOld),
      MEMTIDE_FUNCTION(CtxGetCurrent, Driver::kOld),
      MEMTIDE_FUNCTION(CtxPushCurrent, Driver::kOld),
      MEMTIDE_FUNCTION(CtxPopCurrent, Driver::kOld),
      MEMTIDE_FUNCTION(DevicePrimaryCtxRetain, Driver::kOld),
      MEMTIDE_FUNCTION(DevicePrimaryCtxRelease, Driver::kOld),
      MEMTIDE_FUNCTION(EventQuery, Driver::kOld),
      MEMTIDE_FUNCTION(CtxRecordEvent, Driver::kUsable),
      MEMTIDE_FUNCTION(MemGetAllocationGranularity, Driver::kNoContextEvents),
      MEMTIDE_FUNCTION(MemCreate, Driver::kNoContextEvents),
      MEMTIDE_FUNCTION(MemRelease, Driver::kNoContextEvents),
      MEMTIDE_FUNCTION(MemExportToShareableHandle, Driver::kNoContextEvents),
      MEMTIDE_FUNCTION(MemImportFromShareableHandle, Driver::kNoContextEvents),
      MEMTIDE_FUNCTION(MemAddressReserve, Driver::kNoContextEvents),
      MEMTIDE_FUNCTION(MemAddressFree, Driver::kNoContextEvents),
      MEMTIDE_FUNCTION(MemMap, Driver::kNoContextEvents),
      MEMTIDE_FUNCTION(MemUnmap, Driver::kNoContextEvents),
      MEMTIDE_FUNCTION(MemSetAccess, Driver::kNoContextEvents),
  };
#undef MEMTIDE_FUNCTION
  for (const Function& function : functions) {
    // Driver lists the newest driver first.
    if (name == function.name) return driver > function.first ? nullptr : function.address;
  }
  return nullptr;
}

}  // namespace
}  // namespace memtide::fake_cuda

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                                        unsigned int version,
                                                        unsigned long long flags,
                                                        cudaDriverEntryPointQueryResult* result) {
  memtide::fake_cuda::Process& process = memtide::fake_cuda::TheProcess();
  memtide::fake_cuda::Call call(&process, "cudaGetDriverEntryPointByVersion");
  if (call.refusal() != cudaSuccess) return memtide::fake_cuda::Return(call.refusal());
  *function = memtide::fake_cuda::Find(symbol, process.settings.driver);
  if (result != nullptr) {
    *result =
        *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}

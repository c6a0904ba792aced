// The functions about devices, errors' names excepted, and about contexts.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/cuda/fake/process.h"

namespace memtide::fake_cuda {
namespace {

// Not in the headers of CUDA 12.0.
constexpr auto kMpsEnabled = static_cast<CUdevice_attribute>(133);
constexpr auto kHostNumaId = static_cast<CUdevice_attribute>(134);

// The primary context of each ordinal.
CUcontext ContextOf(int ordinal) {
  return reinterpret_cast<CUcontext>(static_cast<intptr_t>(ordinal) + 1);
}
int OrdinalOf(CUcontext context) {
  return static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
}

// Holds the device for this process, if its compute mode wants that. CUDA_ERROR_DEVICE_UNAVAILABLE:
// another process has it, or no process may, or it has fallen off the bus.
CUresult Occupy(const Process& process, int device, Context* context) {
  if (IsGone(process.directory, device)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (process.settings.compute_mode == CU_COMPUTEMODE_DEFAULT || process.settings.mps) {
    return CUDA_SUCCESS;
  }
  if (process.settings.compute_mode == CU_COMPUTEMODE_PROHIBITED) {
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
  const std::string path = absl::StrCat(process.directory, "/context-", device);
  const int lock = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (lock < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    close(lock);
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
  context->lock = lock;
  return CUDA_SUCCESS;
}

struct Pushed {
  int ordinal;
  bool has_context;
};
thread_local std::vector<Pushed> t_pushed;  // The context that was current before each push.

}  // namespace
}  // namespace memtide::fake_cuda

using memtide::Bytes;
using memtide::CudaUuid;
using memtide::fake_cuda::Call;
using memtide::fake_cuda::Context;
using memtide::fake_cuda::ContextOf;
using memtide::fake_cuda::Driver;
using memtide::fake_cuda::kHostNumaId;
using memtide::fake_cuda::kMpsEnabled;
using memtide::fake_cuda::Needs;
using memtide::fake_cuda::Occupy;
using memtide::fake_cuda::OrdinalOf;
using memtide::fake_cuda::Process;
using memtide::fake_cuda::t_has_context;
using memtide::fake_cuda::t_ordinal;
using memtide::fake_cuda::t_pushed;
using memtide::fake_cuda::TheProcess;

extern "C" {

CUresult cuInit(unsigned int flags) {
  Process& process = TheProcess();
  Call call(&process, "cuInit");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  process.initialized = true;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  Process& process = TheProcess();
  Call call(&process, "cuDeviceGetCount");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  *count = static_cast<int>(process.visible.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  Process& process = TheProcess();
  Call call(&process, "cuDeviceGetName");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (!process.IsOrdinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  const size_t length = std::min(process.settings.name.size(), static_cast<size_t>(size) - 1);
  std::memcpy(name, process.settings.name.data(), length);
  name[length] = '\0';
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* memory, CUdevice device) {
  Process& process = TheProcess();
  Call call(&process, "cuDeviceTotalMem");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (!process.IsOrdinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  *memory = process.settings.memory.count();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  Process& process = TheProcess();
  Call call(&process, "cuDeviceGetAttribute");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (!process.IsOrdinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  const memtide::fake_cuda::Settings& settings = process.settings;
  if (attribute == kMpsEnabled) {
    *value = settings.mps ? 1 : 0;
    return CUDA_SUCCESS;
  }
  // It came after CUDA 12.0, as cuCtxRecordEvent did.
  if (attribute == kHostNumaId && settings.driver != Driver::kNoContextEvents) {
    *value = settings.numa_node;
    return CUDA_SUCCESS;
  }
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      *value = settings.descriptors ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      *value = settings.legacy_ipc ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
      *value = settings.coherent ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
      *value = settings.compute_mode;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceGetPCIBusId(char* id, int size, CUdevice device) {
  Process& process = TheProcess();
  Call call(&process, "cuDeviceGetPCIBusId");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (!process.IsOrdinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  const std::string& known = process.settings.pci;
  if (known.size() >= static_cast<size_t>(size)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(id, known.c_str(), known.size() + 1);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Process& process = TheProcess();
  Call call(&process, "cuDevicePrimaryCtxRetain");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (!process.IsOrdinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  Context& primary = process.contexts[device];
  if (process.HasLost(device)) return CUDA_ERROR_UNKNOWN;
  if (primary.references == 0) {
    const CUresult occupied = Occupy(process, process.visible[device], &primary);
    if (occupied != CUDA_SUCCESS) return occupied;
    primary.losses = memtide::fake_cuda::LossesOf(process.directory, process.visible[device]);
  }
  ++primary.references;
  primary.is_there = true;
  *context = ContextOf(device);
  return CUDA_SUCCESS;
}

// A context without references keeps what is left in it, unlike in CUDA: Held() shows it.
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  Process& process = TheProcess();
  Call call(&process, "cuDevicePrimaryCtxRelease");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (!process.IsOrdinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  Context& primary = process.contexts[device];
  if (primary.references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--primary.references > 0) return CUDA_SUCCESS;
  if (primary.lock >= 0) close(primary.lock);
  primary = Context();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  Process& process = TheProcess();
  Call call(&process, "cuCtxGetCurrent");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  *context = t_has_context ? ContextOf(t_ordinal) : nullptr;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  Process& process = TheProcess();
  Call call(&process, "cuCtxSetCurrent");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  t_has_context = context != nullptr;
  t_ordinal = t_has_context ? OrdinalOf(context) : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  Process& process = TheProcess();
  Call call(&process, "cuCtxPushCurrent");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  t_pushed.push_back({t_ordinal, t_has_context});
  t_ordinal = OrdinalOf(context);
  t_has_context = true;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  Process& process = TheProcess();
  Call call(&process, "cuCtxPopCurrent");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (t_pushed.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = ContextOf(t_ordinal);
  t_ordinal = t_pushed.back().ordinal;
  t_has_context = t_pushed.back().has_context;
  t_pushed.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  Process& process = TheProcess();
  Call call(&process, "cuMemGetInfo", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const Bytes used =
      memtide::fake_cuda::UsedMemory(process.directory, process.visible.at(t_ordinal));
  *total = process.settings.memory.count();
  *free = *total - used.count();
  return CUDA_SUCCESS;
}

}  // extern "C"

#include "base/cuda/cuda.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

// The interface version by which functions are looked up: that of the oldest driver that has them.
constexpr unsigned kVersion = 12000;
constexpr unsigned kCtxRecordEventVersion = 12050;

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorOperatingSystem:
    case cudaErrorNotSupported:
      return absl::StatusCode::kFailedPrecondition;
    // CUDA's "sticky" errors: they make the process's context unusable.
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorUnknown:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

// The remedy for errors that a person can fix.
absl::string_view Advice(cudaError_t error) {
  switch (error) {
    case cudaErrorNoDevice:
      return std::getenv("CUDA_VISIBLE_DEVICES") != nullptr
                 ? "; CUDA_VISIBLE_DEVICES is set and may hide it"
                 : "; see whether nvidia-smi lists one";
    case cudaErrorInsufficientDriver:
      return "; there is no NVIDIA driver, or one older than CUDA 13 needs (580): see nvidia-smi";
    case cudaErrorSystemDriverMismatch:
      return "; driver and its kernel module differ: restart the machine after an update";
    case cudaErrorInitializationError:
    case cudaErrorOperatingSystem:
    case cudaErrorUnknown:
      return "; is the kernel module nvidia-uvm loaded (modprobe nvidia-uvm), and may this user "
             "open /dev/nvidia-uvm?";
    default:
      return "";
  }
}

template <typename Function>
absl::Status Load(const char* name, unsigned version, Function* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(error, absl::StrCat("looking for ", name)));
  if (result != cudaDriverEntryPointSuccess || found == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver has no ", name, ": it is too old; install a newer one"));
  }
  *function = reinterpret_cast<Function>(found);
  return absl::OkStatus();
}

// Loads all functions that map memory, or none and returns false.
bool LoadMapping(CudaDriver* driver) {
  const CudaDriver without = *driver;
  const bool found =
#define MEMTIDE_LOAD(name) Load("cu" #name, kVersion, &driver->name).ok()
      MEMTIDE_LOAD(MemGetAllocationGranularity) && MEMTIDE_LOAD(MemCreate) &&
      MEMTIDE_LOAD(MemRelease) && MEMTIDE_LOAD(MemExportToShareableHandle) &&
      MEMTIDE_LOAD(MemImportFromShareableHandle) && MEMTIDE_LOAD(MemAddressReserve) &&
      MEMTIDE_LOAD(MemAddressFree) && MEMTIDE_LOAD(MemMap) && MEMTIDE_LOAD(MemUnmap) &&
      MEMTIDE_LOAD(MemSetAccess);
#undef MEMTIDE_LOAD
  if (!found) *driver = without;
  return found;
}

absl::StatusOr<CudaDriver> LoadAll() {
  int count = 0;
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "looking for a GPU"));
  CudaDriver driver;
#define MEMTIDE_LOAD(name) MEMTIDE_RETURN_IF_ERROR(Load("cu" #name, kVersion, &driver.name))
  MEMTIDE_LOAD(GetErrorName);
  MEMTIDE_LOAD(DeviceGetAttribute);
  MEMTIDE_LOAD(PointerGetAttribute);
  MEMTIDE_LOAD(CtxGetCurrent);
  MEMTIDE_LOAD(CtxPushCurrent);
  MEMTIDE_LOAD(CtxPopCurrent);
  MEMTIDE_LOAD(DevicePrimaryCtxRetain);
  MEMTIDE_LOAD(DevicePrimaryCtxRelease);
  MEMTIDE_LOAD(EventQuery);
#undef MEMTIDE_LOAD
  driver.maps_memory = LoadMapping(&driver);
  // Without it, a client waits for the whole device before it unmaps (client/cuda/cuda_space.h).
  if (!Load("cuCtxRecordEvent", kCtxRecordEventVersion, &driver.CtxRecordEvent).ok()) {
    driver.CtxRecordEvent = nullptr;
  }
  return driver;
}

absl::StatusOr<bool> Has(const CudaDriver& driver, CUdevice_attribute attribute, int ordinal) {
  int value = 0;
  const CUresult result = driver.DeviceGetAttribute(&value, attribute, ordinal);
  // A driver that is older than the attribute answers so.
  if (result == CUDA_ERROR_INVALID_VALUE) return false;
  MEMTIDE_RETURN_IF_ERROR(
      CudaStatus(result, absl::StrCat("cuDeviceGetAttribute of GPU ", ordinal)));
  return value != 0;
}

}  // namespace

absl::StatusOr<const CudaDriver*> LoadCudaDriver() {
  static Mutex mutex;
  static std::atomic<const CudaDriver*> loaded{nullptr};
  if (const CudaDriver* driver = loaded.load(std::memory_order_acquire)) return driver;
  // A failure is not cached, because the driver may come up later.
  MEMTIDE_ASSIGN_OR_RETURN(CudaDriver driver, LoadAll());
  MutexLock lock(&mutex);
  // tidy(raw-new): never freed, because threads use it until the process exits.
  if (loaded.load() == nullptr) loaded.store(new CudaDriver(driver), std::memory_order_release);
  return loaded.load();
}

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  return absl::Status(CodeOf(error), absl::StrCat(what, ": ", cudaGetErrorString(error), " (",
                                                  cudaGetErrorName(error), ")", Advice(error)));
}

absl::Status CudaStatus(CUresult error, absl::string_view what) {
  // Driver and runtime use the same numbers for the same errors.
  return CudaStatus(static_cast<cudaError_t>(error), what);
}

std::string FormatCudaUuid(const CudaUuid& uuid) {
  const std::string hex = absl::BytesToHexString(absl::string_view(uuid.data(), uuid.size()));
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

absl::StatusOr<std::vector<CudaDeviceFacts>> CudaDevices() {
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver());
  int count = 0;
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "counting GPUs"));
  std::vector<CudaDeviceFacts> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties;
    MEMTIDE_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, ordinal),
                                       absl::StrCat("asking for GPU ", ordinal)));
    CudaDeviceFacts facts;
    facts.ordinal = ordinal;
    facts.name = properties.name;
    facts.memory = Bytes(properties.totalGlobalMem);
    facts.legacy_ipc = properties.ipcEventSupported != 0;
    static_assert(sizeof(properties.uuid.bytes) == sizeof(facts.uuid));
    std::memcpy(facts.uuid.data(), properties.uuid.bytes, facts.uuid.size());
    if (driver->maps_memory) {
      MEMTIDE_ASSIGN_OR_RETURN(
          const bool maps,
          Has(*driver, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal));
      MEMTIDE_ASSIGN_OR_RETURN(
          const bool passes,
          Has(*driver, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ordinal));
      facts.descriptors = maps && passes;
    }
    devices.push_back(facts);
  }
  if (devices.empty()) {
    return CudaStatus(cudaErrorNoDevice, "looking for a GPU");
  }
  return devices;
}

}  // namespace memtide

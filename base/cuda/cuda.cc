#include "base/cuda/cuda.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/cuda/loader.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

constexpr int kCtxRecordEventVersion = 12050;
// Since version 11040, cuDeviceGetUuid answers for a MIG instance with the instance's UUID. The
// older one still answers with that of the whole GPU.
constexpr int kUuidOfWholeVersion = 9020;

// Not in the headers of CUDA 12.0.
constexpr auto kTensorMemoryLeak = static_cast<CUresult>(721);
constexpr auto kContained = static_cast<CUresult>(226);
constexpr auto kMpsEnabled = static_cast<CUdevice_attribute>(133);
constexpr auto kHostNumaId = static_cast<CUdevice_attribute>(134);

std::atomic<const CudaDriver*> loaded_driver{nullptr};

// The key of a payload that a status of an uncorrectable error of the GPU's memory has.
constexpr char kMemoryError[] = "memtide/cuda-memory-error";

absl::StatusCode CodeOf(CUresult error) {
  if (error == kContained || error == kTensorMemoryLeak) return absl::StatusCode::kUnavailable;
  switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return absl::StatusCode::kResourceExhausted;
    case CUDA_ERROR_NO_DEVICE:
      return absl::StatusCode::kNotFound;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_OPERATING_SYSTEM:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
    case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
    case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
      return absl::StatusCode::kFailedPrecondition;
    // CUDA's "sticky" errors: they make the process's context unusable.
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_UNKNOWN:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

// The remedy for errors that a person can fix.
absl::string_view Advice(CUresult error) {
  switch (error) {
    case CUDA_ERROR_NO_DEVICE:
      return std::getenv("CUDA_VISIBLE_DEVICES") != nullptr
                 ? "; CUDA_VISIBLE_DEVICES is set and may hide it"
                 : "; see whether nvidia-smi lists one";
    case CUDA_ERROR_STUB_LIBRARY:
      return "; the libcuda.so.1 that was found is a toolkit's stub: take its directory out of "
             "LD_LIBRARY_PATH";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return "; driver and its kernel module differ: restart the machine after an update";
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
      return "; another process has the GPU for itself, or its compute mode forbids contexts: "
             "nvidia-smi -c 0, or run under MPS, or --device none";
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
      return "; CUDA's MPS server does not answer: is nvidia-cuda-mps-control running, and is "
             "CUDA_MPS_PIPE_DIRECTORY the same for all processes?";
    case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
    case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
      return "; CUDA's MPS server has no room for another client: end one, or run without MPS";
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
      return "; CUDA's MPS server ended this client, as it does when another client fails: restart "
             "this process";
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_OPERATING_SYSTEM:
    case CUDA_ERROR_UNKNOWN:
      return "; is the kernel module nvidia-uvm loaded (modprobe nvidia-uvm), and may this user "
             "open /dev/nvidia-uvm?";
    default:
      return "";
  }
}

// `driver` names the error; it may be null.
absl::Status StatusOf(const CudaDriver* driver, CUresult error, absl::string_view what) {
  if (error == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver != nullptr) {
    driver->GetErrorName(error, &name);
    driver->GetErrorString(error, &text);
  }
  const std::string named = name == nullptr || text == nullptr
                                ? absl::StrCat("CUDA error ", static_cast<int>(error))
                                : absl::StrCat(text, " (", name, ")");
  absl::Status status(CodeOf(error), absl::StrCat(what, ": ", named, Advice(error)));
  const bool memory = error == CUDA_ERROR_ECC_UNCORRECTABLE || error == kContained;
  if (memory) status.SetPayload(kMemoryError, absl::Cord());
  return status;
}

// Looks up functions in the driver that FindCuGetProcAddress found.
class Lookup {
 public:
  explicit Lookup(CuGetProcAddress find) : find_(find) {}

  // Null: the driver has no such function of this version or an older one.
  template <typename Function>
  Function Find(const char* name, int version) const {
    void* found = nullptr;
    CUdriverProcAddressQueryResult result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const CUresult error = find_(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &result);
    const bool is_there = error == CUDA_SUCCESS && result == CU_GET_PROC_ADDRESS_SUCCESS;
    return is_there ? reinterpret_cast<Function>(found) : nullptr;
  }

  // Looks up functions with their names. The error names the first that the driver has not.
  template <typename... Functions>
  absl::Status Require(const std::pair<const char*, Functions*>&... wanted) const {
    absl::Status status;
    (status.Update(RequireOne(wanted.first, wanted.second)), ...);
    return status;
  }

 private:
  template <typename Function>
  absl::Status RequireOne(const char* name, Function* function) const {
    *function = Find<Function>(name, kOldestCuda);
    if (*function != nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("the NVIDIA driver has no ", name,
                                                      ", which driver ", kOldestDriver,
                                                      " has: see nvidia-smi"));
  }

  const CuGetProcAddress find_;
};

absl::Status LoadRequired(const Lookup& lookup, CudaDriver* driver) {
#define MEMTIDE_CU_AS(name, member) std::pair("cu" #name, &driver->member)
#define MEMTIDE_CU(name) MEMTIDE_CU_AS(name, name)
  return lookup.Require(
      MEMTIDE_CU(Init), MEMTIDE_CU(GetErrorName), MEMTIDE_CU(GetErrorString),
      MEMTIDE_CU(DeviceGetCount), MEMTIDE_CU(DeviceGetName), MEMTIDE_CU(DeviceGetUuid),
      MEMTIDE_CU(DeviceTotalMem), MEMTIDE_CU(DeviceGetAttribute), MEMTIDE_CU(DeviceGetPCIBusId),
      MEMTIDE_CU(PointerGetAttribute), MEMTIDE_CU(CtxGetCurrent), MEMTIDE_CU(CtxSetCurrent),
      MEMTIDE_CU(CtxPushCurrent), MEMTIDE_CU(CtxPopCurrent), MEMTIDE_CU(CtxSynchronize),
      MEMTIDE_CU(DevicePrimaryCtxRetain), MEMTIDE_CU(DevicePrimaryCtxRelease),
      MEMTIDE_CU(DevicePrimaryCtxReset), MEMTIDE_CU(MemGetInfo), MEMTIDE_CU(MemAlloc),
      MEMTIDE_CU(MemFree), MEMTIDE_CU(MemHostAlloc), MEMTIDE_CU(MemFreeHost),
      MEMTIDE_CU(MemHostRegister), MEMTIDE_CU(MemHostUnregister), MEMTIDE_CU(IpcGetMemHandle),
      MEMTIDE_CU(IpcOpenMemHandle), MEMTIDE_CU(IpcCloseMemHandle), MEMTIDE_CU(MemcpyHtoDAsync),
      MEMTIDE_CU(MemcpyDtoHAsync), MEMTIDE_CU(MemsetD8Async), MEMTIDE_CU(StreamCreate),
      MEMTIDE_CU(StreamDestroy), MEMTIDE_CU(StreamSynchronize), MEMTIDE_CU(StreamIsCapturing),
      MEMTIDE_CU_AS(MemGetAllocationGranularity, vmm.GetAllocationGranularity),
      MEMTIDE_CU_AS(MemCreate, vmm.Create), MEMTIDE_CU_AS(MemRelease, vmm.Release),
      MEMTIDE_CU_AS(MemExportToShareableHandle, vmm.ExportToShareableHandle),
      MEMTIDE_CU_AS(MemImportFromShareableHandle, vmm.ImportFromShareableHandle),
      MEMTIDE_CU_AS(MemAddressReserve, vmm.AddressReserve),
      MEMTIDE_CU_AS(MemAddressFree, vmm.AddressFree), MEMTIDE_CU_AS(MemMap, vmm.Map),
      MEMTIDE_CU_AS(MemUnmap, vmm.Unmap), MEMTIDE_CU_AS(MemSetAccess, vmm.SetAccess),
      MEMTIDE_CU_AS(EventCreate, events.Create), MEMTIDE_CU_AS(EventDestroy, events.Destroy),
      MEMTIDE_CU_AS(EventRecord, events.Record), MEMTIDE_CU_AS(EventQuery, events.Query),
      MEMTIDE_CU_AS(EventSynchronize, events.Synchronize));
#undef MEMTIDE_CU
#undef MEMTIDE_CU_AS
}

absl::StatusOr<CudaDriver> LoadAll() {
  MEMTIDE_ASSIGN_OR_RETURN(const CuGetProcAddress find, FindCuGetProcAddress());
  const Lookup lookup(find);
  CudaDriver driver;
  MEMTIDE_RETURN_IF_ERROR(LoadRequired(lookup, &driver));
  driver.DeviceGetUuidOfWhole =
      lookup.Find<decltype(driver.DeviceGetUuidOfWhole)>("cuDeviceGetUuid", kUuidOfWholeVersion);
  // Without it, a client records an event for each stream (StreamEvents of
  // client/cuda/epoch_events.h).
  CudaEvents& events = driver.events;
  events.RecordContext =
      lookup.Find<decltype(events.RecordContext)>("cuCtxRecordEvent", kCtxRecordEventVersion);
  MEMTIDE_RETURN_IF_ERROR(StatusOf(&driver, driver.Init(0), "looking for a GPU"));
  return driver;
}

// A driver that is older than the attribute answers that the argument is invalid: zero.
absl::StatusOr<int> Attribute(const CudaDriver& driver, CUdevice_attribute attribute, int ordinal) {
  int value = 0;
  const CUresult result = driver.DeviceGetAttribute(&value, attribute, ordinal);
  if (result == CUDA_ERROR_INVALID_VALUE) return 0;
  MEMTIDE_RETURN_IF_ERROR(
      CudaStatus(result, absl::StrCat("cuDeviceGetAttribute of GPU ", ordinal)));
  return value;
}

CudaComputeMode ComputeModeOf(int attribute) {
  switch (attribute) {
    case CU_COMPUTEMODE_PROHIBITED:
      return CudaComputeMode::kProhibited;
    case CU_COMPUTEMODE_EXCLUSIVE_PROCESS:
      return CudaComputeMode::kExclusiveProcess;
    default:
      return CudaComputeMode::kShared;
  }
}

absl::Status Identify(const CudaDriver& driver, CudaDeviceFacts* facts) {
  const std::string what = absl::StrCat("asking for GPU ", facts->ordinal);
  char name[256] = {};
  MEMTIDE_RETURN_IF_ERROR(
      CudaStatus(driver.DeviceGetName(name, sizeof(name) - 1, facts->ordinal), what));
  facts->name = name;
  size_t memory = 0;
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver.DeviceTotalMem(&memory, facts->ordinal), what));
  facts->memory = Bytes(memory);
  CUuuid uuid = {};
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver.DeviceGetUuid(&uuid, facts->ordinal), what));
  static_assert(sizeof(uuid.bytes) == sizeof(facts->uuid));
  std::memcpy(facts->uuid.data(), uuid.bytes, facts->uuid.size());
  // The driver has no attribute for MIG: an instance has a UUID besides its GPU's, and its name
  // says so ("NVIDIA A100 MIG 1g.5gb").
  CUuuid whole = uuid;
  if (driver.DeviceGetUuidOfWhole != nullptr) {
    MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver.DeviceGetUuidOfWhole(&whole, facts->ordinal), what));
  }
  facts->mig = std::memcmp(whole.bytes, uuid.bytes, sizeof(uuid.bytes)) != 0 ||
               absl::StrContains(facts->name, " MIG ");
  return absl::OkStatus();
}

absl::Status Inquire(const CudaDriver& driver, CudaDeviceFacts* facts) {
  const int ordinal = facts->ordinal;
  MEMTIDE_ASSIGN_OR_RETURN(
      const int maps,
      Attribute(driver, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal));
  MEMTIDE_ASSIGN_OR_RETURN(
      const int passes,
      Attribute(driver, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ordinal));
  facts->descriptors = maps != 0 && passes != 0;
  MEMTIDE_ASSIGN_OR_RETURN(const int ipc,
                           Attribute(driver, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, ordinal));
  facts->legacy_ipc = ipc != 0;
  MEMTIDE_ASSIGN_OR_RETURN(const int mode,
                           Attribute(driver, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, ordinal));
  facts->compute_mode = ComputeModeOf(mode);
  MEMTIDE_ASSIGN_OR_RETURN(const int mps, Attribute(driver, kMpsEnabled, ordinal));
  facts->mps = mps != 0;
  MEMTIDE_ASSIGN_OR_RETURN(
      const int coherent,
      Attribute(driver, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, ordinal));
  facts->coherent = coherent != 0;
  return absl::OkStatus();
}

// Where on the machine the GPU is. Nothing that is unknown here is an error, as memory anywhere
// works.
void Locate(const CudaDriver& driver, CudaDeviceFacts* facts) {
  int node = -1;
  if (driver.DeviceGetAttribute(&node, kHostNumaId, facts->ordinal) == CUDA_SUCCESS && node >= 0) {
    facts->numa_node = node;
  }
  char id[32] = {};
  if (driver.DeviceGetPCIBusId(id, sizeof(id), facts->ordinal) == CUDA_SUCCESS) {
    // sysfs has small letters where CUDA has capital ones.
    facts->pci_id = absl::AsciiStrToLower(id);
  }
}

}  // namespace

absl::StatusOr<const CudaDriver*> LoadCudaDriver() {
  static Mutex mutex;
  if (const CudaDriver* driver = loaded_driver.load(std::memory_order_acquire)) return driver;
  // A failure is not cached, because the driver may come up later.
  MEMTIDE_ASSIGN_OR_RETURN(CudaDriver driver, LoadAll());
  MutexLock lock(&mutex);
  if (loaded_driver.load() == nullptr) {
    // tidy(raw-new): never freed, because threads use it until the process exits.
    loaded_driver.store(new CudaDriver(driver), std::memory_order_release);
  }
  return loaded_driver.load();
}

absl::Status CudaStatus(CUresult error, absl::string_view what) {
  return StatusOf(loaded_driver.load(std::memory_order_acquire), error, what);
}

bool IsCudaMemoryError(const absl::Status& status) {
  return status.GetPayload(kMemoryError).has_value();
}

std::string FormatCudaUuid(const CudaUuid& uuid) {
  const std::string hex = absl::BytesToHexString(absl::string_view(uuid.data(), uuid.size()));
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

std::string CudaDeviceFacts::FormatUuid() const {
  const std::string text = FormatCudaUuid(uuid);
  return mig ? absl::StrCat("MIG-", text.substr(4)) : text;
}

absl::StatusOr<std::vector<CudaDeviceFacts>> CudaDevices() {
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver());
  int count = 0;
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver->DeviceGetCount(&count), "counting GPUs"));
  std::vector<CudaDeviceFacts> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CudaDeviceFacts facts;
    // CUDA numbers devices from zero, and a CUdevice is that number.
    facts.ordinal = ordinal;
    MEMTIDE_RETURN_IF_ERROR(Identify(*driver, &facts));
    MEMTIDE_RETURN_IF_ERROR(Inquire(*driver, &facts));
    Locate(*driver, &facts);
    devices.push_back(facts);
  }
  if (devices.empty()) {
    return CudaStatus(CUDA_ERROR_NO_DEVICE, "looking for a GPU");
  }
  return devices;
}

absl::Status CheckComputeMode(const CudaDeviceFacts& facts) {
  const bool prohibited = facts.compute_mode == CudaComputeMode::kProhibited;
  // Under MPS its server is the one process.
  const bool one = facts.compute_mode == CudaComputeMode::kExclusiveProcess && !facts.mps;
  if (!prohibited && !one) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "GPU ", facts.ordinal, " (", facts.name, ") is in compute mode ",
      prohibited ? "prohibited, so no process can use it"
                 : "exclusive-process, so memtide and the script cannot both use it",
      ": nvidia-smi -c 0", prohibited ? "" : ", or run under MPS", ", or --device none"));
}

}  // namespace memtide

#include "daemon/device/cuda_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

constexpr auto kHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

class DescriptorMemory : public CudaMemory {
 public:
  explicit DescriptorMemory(const CudaMemoryOptions& options) : CudaMemory(options) {}
  ~DescriptorMemory() override {
    Release();
    // The second call retries what failed in the first.
    Release();
    if (fd_ >= 0) close(fd_);
  }

  absl::Status Make();

  MemoryExport Export() const override {
    return {MemoryKind::kCudaDescriptor, size(), fd_, std::string()};
  }
  absl::StatusOr<CUdeviceptr> Address() const override {
    MEMTIDE_CHECK(mapped_) << name();
    return address_;
  }
  void Forget() override;
  absl::Status Reopen() override;

 private:
  CUmemLocation Location() const;
  absl::Status CheckGranularity(const CUmemAllocationProp& properties) const;
  absl::Status Map();
  // Releases the handle: from then on descriptor and mapping keep the memory alive.
  absl::Status ReleaseHandle();
  // A handle or mapping that cannot be released stays, to be tried once more.
  void Release();

  int fd_ = -1;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;  // Reserved, unless zero.
  bool mapped_ = false;
};

CUmemLocation DescriptorMemory::Location() const {
  CUmemLocation location = {};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = options().ordinal;
  return location;
}

absl::Status DescriptorMemory::CheckGranularity(const CUmemAllocationProp& properties) const {
  size_t granularity = 0;
  MEMTIDE_RETURN_IF_ERROR(Failed(cu().vmm.GetAllocationGranularity(
                                     &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                                 "cuMemGetAllocationGranularity"));
  if (granularity != 0 && size().IsMultipleOf(Bytes(granularity))) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Describe(), ": this GPU allocates memory only in multiples of ",
                   FormatBytes(Bytes(granularity)), ", and memtide needs multiples of 2 MiB"));
}

absl::Status DescriptorMemory::Make() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kHandleType;
  properties.location = Location();
  // A size that is no multiple of the granularity fails in cuMemCreate without saying why.
  MEMTIDE_RETURN_IF_ERROR(CheckGranularity(properties));
  MEMTIDE_RETURN_IF_ERROR(
      Failed(cu().vmm.Create(&handle_, size().count(), &properties, 0), "cuMemCreate"));
  MEMTIDE_RETURN_IF_ERROR(Failed(cu().vmm.ExportToShareableHandle(&fd_, handle_, kHandleType, 0),
                                 "cuMemExportToShareableHandle"));
  fcntl(fd_, F_SETFD, FD_CLOEXEC);
  MEMTIDE_RETURN_IF_ERROR(Map());
  return ReleaseHandle();
}

absl::Status DescriptorMemory::Map() {
  const size_t count = size().count();
  MEMTIDE_RETURN_IF_ERROR(
      Failed(cu().vmm.AddressReserve(&address_, count, 0, 0, 0), "cuMemAddressReserve"));
  MEMTIDE_RETURN_IF_ERROR(Failed(cu().vmm.Map(address_, count, 0, handle_, 0), "cuMemMap"));
  mapped_ = true;
  // CUDA maps memory without any access; it is granted in a call of its own.
  CUmemAccessDesc access = {};
  access.location = Location();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return Failed(cu().vmm.SetAccess(address_, count, &access, 1), "cuMemSetAccess");
}

absl::Status DescriptorMemory::ReleaseHandle() {
  MEMTIDE_RETURN_IF_ERROR(Failed(cu().vmm.Release(handle_), "cuMemRelease"));
  handle_ = 0;
  return absl::OkStatus();
}

void DescriptorMemory::Release() {
  const size_t count = size().count();
  // CUDA takes an address range back only once nothing is mapped there.
  if (mapped_ && cu().vmm.Unmap(address_, count) == CUDA_SUCCESS) mapped_ = false;
  if (address_ != 0 && !mapped_ && cu().vmm.AddressFree(address_, count) == CUDA_SUCCESS) {
    address_ = 0;
  }
  if (handle_ != 0) ReleaseHandle().IgnoreError();
}

void DescriptorMemory::Forget() {
  Release();
  mapped_ = false;
  address_ = 0;
  handle_ = 0;
}

absl::Status DescriptorMemory::Reopen() {
  // An import leaves the descriptor open, so it serves the next reset, too.
  void* const descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(fd_));
  MEMTIDE_RETURN_IF_ERROR(
      Failed(cu().vmm.ImportFromShareableHandle(&handle_, descriptor, kHandleType),
             "cuMemImportFromShareableHandle"));
  MEMTIDE_RETURN_IF_ERROR(Map());
  return ReleaseHandle();
}

class IpcMemory : public CudaMemory {
 public:
  explicit IpcMemory(const CudaMemoryOptions& options) : CudaMemory(options) {}
  ~IpcMemory() override {
    Release();
    // The second call retries what failed in the first.
    Release();
  }

  absl::Status Make() {
    MEMTIDE_RETURN_IF_ERROR(Failed(cu().MemAlloc(&address_, size().count()), "cuMemAlloc"));
    CUipcMemHandle handle;
    MEMTIDE_RETURN_IF_ERROR(Failed(cu().IpcGetMemHandle(&handle, address_), "cuIpcGetMemHandle"));
    handle_.assign(reinterpret_cast<const char*>(&handle), sizeof(handle));
    return absl::OkStatus();
  }

  MemoryExport Export() const override { return {MemoryKind::kCudaIpc, size(), -1, handle_}; }
  absl::StatusOr<CUdeviceptr> Address() const override {
    if (address_ != 0) return address_;
    return absl::UnavailableError(
        absl::StrCat(Describe(), ": lost when the GPU was reset, as legacy IPC memory is"));
  }
  void Forget() override {
    Release();
    address_ = 0;
  }
  absl::Status Reopen() override { return absl::OkStatus(); }

 private:
  // Memory that cannot be freed stays, to be tried once more.
  void Release() {
    if (address_ != 0 && cu().MemFree(address_) == CUDA_SUCCESS) address_ = 0;
  }

  CUdeviceptr address_ = 0;
  std::string handle_;
};

template <typename Memory>
absl::StatusOr<std::unique_ptr<CudaMemory>> Make(const CudaMemoryOptions& options) {
  auto memory = std::make_unique<Memory>(options);
  MEMTIDE_RETURN_IF_ERROR(memory->Make());
  return std::unique_ptr<CudaMemory>(std::move(memory));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaMemory>> CudaMemory::Create(const CudaMemoryOptions& options,
                                                               MemoryKind kind) {
  MEMTIDE_CHECK(kind != MemoryKind::kSharedMemory) << options.name;
  if (kind == MemoryKind::kCudaDescriptor) return Make<DescriptorMemory>(options);
  return Make<IpcMemory>(options);
}

std::string CudaMemory::Describe() const {
  return absl::StrCat("memory \"", name(), "\" (", FormatBytes(size()), ")");
}

absl::Status CudaMemory::Failed(CUresult error, absl::string_view call) const {
  return CudaStatus(error, absl::StrCat(call, " of ", Describe()));
}

}  // namespace memtide

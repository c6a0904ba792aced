#include "bench/gpu/mapped_memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"

namespace memtide::bench {
namespace {

CUmemAllocationProp Shareable() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

}  // namespace

void OrDie(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

const CudaDriver& Driver() {
  const absl::StatusOr<const CudaDriver*> driver = LoadCudaDriver();
  OrDie(driver.status());
  return **driver;
}

std::string NameOf(CUresult error) {
  const char* name = nullptr;
  Driver().GetErrorName(error, &name);
  return name == nullptr ? "?" : name;
}

void UseFirstGpu() { OrDie(UseGpu(0)); }

MappedMemory MappedMemory::Create(size_t bytes) {
  const CUmemAllocationProp properties = Shareable();
  CUmemGenericAllocationHandle handle = 0;
  OrDie(Driver().vmm.Create(&handle, bytes, &properties, 0), "cuMemCreate");
  return MappedMemory(handle, bytes);
}

MappedMemory MappedMemory::Import(int descriptor, size_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  OrDie(Driver().vmm.ImportFromShareableHandle(
            &handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle");
  return MappedMemory(handle, bytes);
}

MappedMemory::MappedMemory(CUmemGenericAllocationHandle handle, size_t bytes)
    : handle_(handle), bytes_(bytes) {
  OrDie(Driver().vmm.AddressReserve(&base_, bytes, 0, 0, 0), "cuMemAddressReserve");
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : handle_(other.handle_),
      bytes_(other.bytes_),
      base_(std::exchange(other.base_, 0)),
      has_handle_(std::exchange(other.has_handle_, false)),
      mapped_(std::exchange(other.mapped_, false)) {}

MappedMemory::~MappedMemory() {
  if (mapped_) Unmap();
  if (has_handle_) ReleaseHandle();
  if (base_ != 0) OrDie(Driver().vmm.AddressFree(base_, bytes_), "cuMemAddressFree");
}

int MappedMemory::Export() const {
  int descriptor = -1;
  OrDie(Driver().vmm.ExportToShareableHandle(&descriptor, handle_,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle");
  return descriptor;
}

void MappedMemory::Map() {
  MapClosed();
  SetAccess(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

void MappedMemory::MapClosed() {
  OrDie(Driver().vmm.Map(base_, bytes_, 0, handle_, 0), "cuMemMap");
  mapped_ = true;
}

void MappedMemory::SetAccess(CUmemAccess_flags flags) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = flags;
  OrDie(Driver().vmm.SetAccess(base_, bytes_, &access, 1), "cuMemSetAccess");
}

void MappedMemory::Unmap() {
  OrDie(Driver().vmm.Unmap(base_, bytes_), "cuMemUnmap");
  mapped_ = false;
}

void MappedMemory::ReleaseHandle() {
  OrDie(Driver().vmm.Release(handle_), "cuMemRelease");
  has_handle_ = false;
}

std::string MappedMemory::Abandon() {
  const CUresult errors[] = {Driver().vmm.Unmap(base_, bytes_), Driver().vmm.Release(handle_),
                             Driver().vmm.AddressFree(base_, bytes_)};
  mapped_ = has_handle_ = false;
  base_ = 0;
  std::string words;
  for (const CUresult error : errors) {
    absl::StrAppend(&words, words.empty() ? "" : ", ", NameOf(error));
  }
  return words;
}

void MappedMemory::Fill(int value) {
  UseFirstGpu();
  OrDie(Driver().MemsetD8Async(base_, static_cast<unsigned char>(value), bytes_, nullptr),
        "cuMemsetD8Async");
  OrDie(Driver().CtxSynchronize(), "cuCtxSynchronize");
}

bool MappedMemory::Holds(int value) const {
  std::vector<char> copy(bytes_);
  UseFirstGpu();
  OrDie(Driver().MemcpyDtoHAsync(copy.data(), base_, bytes_, nullptr), "cuMemcpyDtoHAsync");
  OrDie(Driver().StreamSynchronize(nullptr), "cuStreamSynchronize");
  return std::all_of(copy.begin(), copy.end(),
                     [value](char byte) { return byte == static_cast<char>(value); });
}

size_t FreeGpuMemory() {
  size_t free = 0, total = 0;
  UseFirstGpu();
  OrDie(Driver().MemGetInfo(&free, &total), "cuMemGetInfo");
  return free;
}

}  // namespace memtide::bench

#include "base/cuda/fake/vmm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/cuda/fake/kernel.h"
#include "base/cuda/fake/process.h"
#include "base/cuda/fake/streams.h"

namespace memtide::fake_cuda {
namespace {

bool IsAligned(uint64_t value) { return value % kGranularity == 0; }

// The device that the properties name. nullopt: they name none.
absl::optional<int> DeviceOf(const Process& process, const CUmemLocation& location) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id < 0 ||
      location.id >= static_cast<int>(process.visible.size())) {
    return absl::nullopt;
  }
  return process.visible[location.id];
}

// Sets *most to the strongest access in the list: the memory of all devices is the CPU's here, so
// that access is every device's. Returns false if the list names no device, or one twice.
bool StrongestOf(const Process& process, absl::Span<const CUmemAccessDesc> list, Access* most) {
  std::set<int> named;
  for (const CUmemAccessDesc& each : list) {
    const absl::optional<int> device = DeviceOf(process, each.location);
    if (!device.has_value() || !named.insert(*device).second) return false;
    switch (each.flags) {
      case CU_MEM_ACCESS_FLAGS_PROT_NONE:
        break;
      case CU_MEM_ACCESS_FLAGS_PROT_READ:
        *most = std::max(*most, Access::kRead);
        break;
      case CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
        *most = Access::kWrite;
        break;
      default:
        return false;
    }
  }
  return true;
}

void* Pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// Maps inaccessible addresses without memory: at `at`, or anywhere.
bool MapNothing(void* at, size_t size, int fixed) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed;
  if (mmap(at, size, PROT_NONE, flags, -1, 0) == MAP_FAILED) return false;
  madvise(at, size, MADV_DONTFORK);
  return true;
}

// Zero: the address space is exhausted.
uintptr_t ReserveAligned(size_t size, size_t alignment, CUdeviceptr hint) {
  if (hint != 0 && hint % alignment == 0 && MapNothing(Pointer(hint), size, MAP_FIXED_NOREPLACE)) {
    return hint;
  }
  const size_t padded = size + alignment;
  void* const got =
      mmap(nullptr, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return 0;
  const auto start = reinterpret_cast<uintptr_t>(got);
  const uintptr_t aligned = (start + alignment - 1) / alignment * alignment;
  if (aligned > start) munmap(got, aligned - start);
  const uintptr_t end = aligned + size;
  if (end < start + padded) munmap(Pointer(end), start + padded - end);
  madvise(Pointer(aligned), size, MADV_DONTFORK);
  return aligned;
}

bool IsReserved(const Process& process, uintptr_t address, uint64_t size)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process.mutex) {
  auto found = process.reservations.upper_bound(address);
  if (found == process.reservations.begin()) return false;
  --found;
  return address + size <= found->first + found->second;
}

// Where the fake accesses what is mapped at a reserved address.
uintptr_t ViewIn(const Process& process, uintptr_t address)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process.mutex) {
  const auto next = process.views.upper_bound(address);
  if (next == process.views.begin()) return address;
  const auto& [start, view] = *std::prev(next);
  return view + (address - start);
}

// Mappings change under work, on a GPU that cannot bear that.
void BreakIfBusy(Process* process) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex) {
  if (process->settings.maps_under_work) return;
  for (const auto& [key, stream] : process->streams) {
    if (stream->IsBusy(process)) process->Break(CUDA_ERROR_ILLEGAL_ADDRESS);
  }
}

bool IsMapped(const Process& process, uintptr_t address, uint64_t size)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process.mutex) {
  const auto next = process.mappings.lower_bound(address + size);
  if (next == process.mappings.begin()) return false;
  const auto last = std::prev(next);
  return last->first + last->second.size > address;
}

}  // namespace

CUresult MemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                     CUmemAllocationGranularity_flags option) {
  Process& process = TheProcess();
  Call call(&process, "cuMemGetAllocationGranularity");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      !DeviceOf(process, properties->location)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult MemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                   const CUmemAllocationProp* properties, unsigned long long flags) {
  Process& process = TheProcess();
  Call call(&process, "cuMemCreate");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto device = DeviceOf(process, properties->location);
  if (size == 0 || !IsAligned(size) || flags != 0 || !device ||
      properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  PhysicalFacts facts;
  facts.device = *device;
  facts.size = size;
  facts.exportable =
      (properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  if (facts.exportable && !process.settings.descriptors) return CUDA_ERROR_NOT_SUPPORTED;
  auto physical = Physical::Create(process.directory, process.settings.memory, facts,
                                   process.ContentOfMemory());
  if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = process.next_handle++;
  process.handles[*handle] = std::move(physical);
  return CUDA_SUCCESS;
}

CUresult MemRelease(CUmemGenericAllocationHandle handle) {
  Process& process = TheProcess();
  Call call(&process, "cuMemRelease");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  return process.handles.erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult MemExportToShareableHandle(void* descriptor, CUmemGenericAllocationHandle handle,
                                    CUmemAllocationHandleType type, unsigned long long flags) {
  Process& process = TheProcess();
  Call call(&process, "cuMemExportToShareableHandle");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto found = process.handles.find(handle);
  if (found == process.handles.end() || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      !found->second->facts().exportable || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int fd = fcntl(found->second->fd(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(descriptor, &fd, sizeof(fd));
  return CUDA_SUCCESS;
}

CUresult MemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* descriptor,
                                      CUmemAllocationHandleType type) {
  Process& process = TheProcess();
  Call call(&process, "cuMemImportFromShareableHandle");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  if (!process.settings.import) return CUDA_ERROR_NOT_SUPPORTED;
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(descriptor));
  auto physical = Physical::FromDescriptor(process.directory, fd);
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = process.next_handle++;
  process.handles[*handle] = std::move(physical);
  return CUDA_SUCCESS;
}

CUresult MemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr hint,
                           unsigned long long flags) {
  Process& process = TheProcess();
  Call call(&process, "cuMemAddressReserve");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const bool power = (alignment & (alignment - 1)) == 0;
  if (size == 0 || !IsAligned(size) || !power || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const uintptr_t got = ReserveAligned(size, std::max(alignment, kGranularity), hint);
  if (got == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (process.settings.tensors == Tensors::kOnBackend) {
    const uintptr_t view = ReserveAligned(size, kGranularity, 0);
    if (view == 0) {
      munmap(Pointer(got), size);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    process.views[got] = view;
  }
  process.reservations[got] = size;
  *address = got;
  return CUDA_SUCCESS;
}

CUresult MemAddressFree(CUdeviceptr address, size_t size) {
  Process& process = TheProcess();
  Call call(&process, "cuMemAddressFree");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto found = process.reservations.find(address);
  if (found == process.reservations.end() || found->second != size ||
      IsMapped(process, address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap(Pointer(address), size);
  process.reservations.erase(found);
  const auto view = process.views.find(address);
  if (view != process.views.end()) {
    munmap(Pointer(view->second), size);
    process.views.erase(view);
  }
  return CUDA_SUCCESS;
}

CUresult MemMap(CUdeviceptr address, size_t size, size_t offset,
                CUmemGenericAllocationHandle handle, unsigned long long flags) {
  Process& process = TheProcess();
  Call call(&process, "cuMemMap");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto found = process.handles.find(handle);
  if (found == process.handles.end() || !IsAligned(address) || offset != 0 || flags != 0 ||
      size != found->second->facts().size || !IsReserved(process, address, size) ||
      IsMapped(process, address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  BreakIfBusy(&process);
  const uintptr_t view = ViewIn(process, address);
  const int protection = view == address ? PROT_NONE : PROT_READ | PROT_WRITE;
  if (mmap(Pointer(view), size, protection, MAP_SHARED | MAP_FIXED, found->second->fd(), 0) ==
      MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  madvise(Pointer(view), size, MADV_DONTFORK);
  process.mappings[address] = Mapping{size, MappedBy::kMap, Access::kNone, found->second, view};
  return CUDA_SUCCESS;
}

CUresult MemUnmap(CUdeviceptr address, size_t size) {
  Process& process = TheProcess();
  Call call(&process, "cuMemUnmap");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto found = process.mappings.find(address);
  if (found == process.mappings.end() || found->second.by != MappedBy::kMap ||
      found->second.size != size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uintptr_t view = found->second.view;
  BreakIfBusy(&process);
  BreakKernels(&process, {address, size});
  if (!MapNothing(Pointer(view), size, MAP_FIXED)) return CUDA_ERROR_OUT_OF_MEMORY;
  process.mappings.erase(address);
  // Also if other memory is mapped there before the work comes.
  BreakWorkOn(&process, {address, size});
  return CUDA_SUCCESS;
}

CUresult MemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* access,
                      size_t count) {
  Process& process = TheProcess();
  Call call(&process, "cuMemSetAccess");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  Access most = Access::kNone;
  if (count == 0 || !StrongestOf(process, {access, count}, &most) || size == 0 ||
      !process.MayUse(address, size, Access::kNone)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto first = process.mappings.find(address);
  const auto end = process.mappings.lower_bound(address + size);
  const auto last = end == process.mappings.begin() ? end : std::prev(end);
  if (first == process.mappings.end() || last->first + last->second.size != address + size) {
    return CUDA_ERROR_INVALID_VALUE;  // Only a whole mapping can be unmapped.
  }
  const int protection =
      (most >= Access::kRead ? PROT_READ : PROT_NONE) | (most == Access::kWrite ? PROT_WRITE : 0);
  const bool closed = process.settings.tensors == Tensors::kOnBackend;  // Kernels are checked.
  if (!closed && mprotect(Pointer(address), size, protection) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  for (auto mapping = first; mapping != end; ++mapping) {
    // The kernel module (UVM) changes the access of a mapping by unmapping it and mapping it again.
    if (mapping->second.access != Access::kNone) {
      BreakKernels(&process, {mapping->first, mapping->second.size});
      BreakWorkOn(&process, {mapping->first, mapping->second.size});
    }
    mapping->second.access = most;
  }
  return CUDA_SUCCESS;
}

}  // namespace memtide::fake_cuda

// cuMemAlloc, legacy IPC handles, and pinned host memory.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/process.h"
#include "base/cuda/fake/streams.h"

namespace memtide::fake_cuda {
namespace {

// One call registers at most this much. Real CUDA has a limit too, somewhere above.
constexpr uint64_t kMostRegistered = uint64_t{64} << 30;

// The content of the 64 opaque bytes of a handle.
struct IpcHandle {
  char magic[8];
  uint64_t exporter;
  char name[48];
};
static_assert(sizeof(IpcHandle) == sizeof(CUipcMemHandle));
constexpr char kMagic[8] = {'f', 'a', 'k', 'e', 'i', 'p', 'c', '1'};

// Zero: the address space is exhausted.
CUdeviceptr MapAt(const Physical& physical, int protection) {
  void* const at = mmap(nullptr, physical.facts().size, protection, MAP_SHARED, physical.fd(), 0);
  if (at == MAP_FAILED) return 0;
  madvise(at, physical.facts().size, MADV_DONTFORK);
  return reinterpret_cast<CUdeviceptr>(at);
}

// Maps the memory anywhere. Zero: the address space is exhausted.
CUdeviceptr MapAnywhere(Process* process, MappedBy by, std::shared_ptr<Physical> physical)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex) {
  constexpr int kOpen = PROT_READ | PROT_WRITE;
  const uint64_t size = physical->facts().size;
  const bool closed = process->settings.tensors == Tensors::kOnBackend;
  const CUdeviceptr at = MapAt(*physical, closed ? PROT_NONE : kOpen);
  const CUdeviceptr view = closed && at != 0 ? MapAt(*physical, kOpen) : at;
  if (view == 0) {
    if (at != 0) munmap(reinterpret_cast<void*>(at), size);
    return 0;
  }
  Mapping mapping{size, by, Access::kWrite, std::move(physical)};
  mapping.view = view;
  process->mappings[at] = std::move(mapping);
  return at;
}

void Unmap(Process* process, std::map<uintptr_t, Mapping>::iterator found)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex) {
  const auto& [address, mapping] = *found;
  munmap(reinterpret_cast<void*>(address), mapping.size);
  if (mapping.view != address) munmap(reinterpret_cast<void*>(mapping.view), mapping.size);
  process->mappings.erase(found);
}

// Finds the mapping that `by` made at exactly `address`. end(): there is none.
auto FindMapping(Process* process, CUdeviceptr address, MappedBy by)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex) {
  const auto found = process->mappings.find(address);
  const bool is = found != process->mappings.end() && found->second.by == by;
  return is ? found : process->mappings.end();
}

}  // namespace
}  // namespace memtide::fake_cuda

using memtide::fake_cuda::Await;
using memtide::fake_cuda::BreakWorkOn;
using memtide::fake_cuda::Call;
using memtide::fake_cuda::FindMapping;
using memtide::fake_cuda::IpcHandle;
using memtide::fake_cuda::kGranularity;
using memtide::fake_cuda::MapAnywhere;
using memtide::fake_cuda::MappedBy;
using memtide::fake_cuda::MarkAll;
using memtide::fake_cuda::Needs;
using memtide::fake_cuda::Physical;
using memtide::fake_cuda::PhysicalFacts;
using memtide::fake_cuda::Process;
using memtide::fake_cuda::TheProcess;
using memtide::fake_cuda::Unmap;

extern "C" {

CUresult cuMemAlloc(CUdeviceptr* address, size_t size) {
  Process& process = TheProcess();
  Call call(&process, "cuMemAlloc", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (address == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  PhysicalFacts facts;
  facts.device = process.visible.at(memtide::fake_cuda::t_ordinal);
  facts.size = (size + kGranularity - 1) / kGranularity * kGranularity;
  auto physical = Physical::Create(process.directory, process.settings.memory, facts,
                                   process.ContentOfMemory());
  if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = MapAnywhere(&process, MappedBy::kMalloc, std::move(physical));
  return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

// The fake does not pin: it allocates ordinary memory, and counts it.
CUresult cuMemHostAlloc(void** address, size_t size, unsigned int flags) {
  Process& process = TheProcess();
  Call call(&process, "cuMemHostAlloc", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (!process.MayPin(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  if (*address == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  process.host_allocations[reinterpret_cast<uintptr_t>(*address)] = size;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* address) {
  Process& process = TheProcess();
  Call call(&process, "cuMemFreeHost", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  process.host_allocations.erase(reinterpret_cast<uintptr_t>(address));
  std::free(address);
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
  Process& process = TheProcess();
  Call call(&process, "cuMemFree", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (address == 0) return CUDA_SUCCESS;
  const auto found = FindMapping(&process, address, MappedBy::kMalloc);
  if (found == process.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  // CUDA does not promise to wait, but does: memory is freed under no kernel.
  const CUresult error = Await(&process, MarkAll(&process));
  if (error != CUDA_SUCCESS) return error;
  const auto freed = FindMapping(&process, address, MappedBy::kMalloc);
  if (freed == process.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  // A process that still has it open reads poison.
  if (process.card == nullptr) {
    std::memset(process.View(address), memtide::fake_cuda::kPoison, freed->second.size);
  }
  Unmap(&process, freed);
  return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  Process& process = TheProcess();
  Call call(&process, "cuIpcGetMemHandle", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto found = FindMapping(&process, address, MappedBy::kMalloc);
  if (found == process.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  IpcHandle made = {};
  std::memcpy(made.magic, memtide::fake_cuda::kMagic, sizeof(made.magic));
  made.exporter = process.token;
  const std::string& name = found->second.physical->name();
  if (name.size() >= sizeof(made.name)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(made.name, name.data(), name.size());
  std::memcpy(handle, &made, sizeof(made));
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  Process& process = TheProcess();
  Call call(&process, "cuIpcOpenMemHandle", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (!process.settings.open_ipc) return CUDA_ERROR_MAP_FAILED;
  IpcHandle made;
  std::memcpy(&made, &handle, sizeof(made));
  if (std::memcmp(made.magic, memtide::fake_cuda::kMagic, sizeof(made.magic)) != 0 ||
      flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (made.exporter == process.token) return CUDA_ERROR_INVALID_CONTEXT;
  const std::string name(made.name, strnlen(made.name, sizeof(made.name)));
  for (auto& [at, mapping] : process.mappings) {
    if (mapping.by != MappedBy::kIpc || mapping.physical->name() != name) continue;
    ++mapping.opens;
    *address = at;
    return CUDA_SUCCESS;
  }
  auto physical = Physical::Open(process.directory, name);
  if (physical == nullptr) return CUDA_ERROR_MAP_FAILED;
  *address = MapAnywhere(&process, MappedBy::kIpc, std::move(physical));
  return *address == 0 ? CUDA_ERROR_MAP_FAILED : CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  Process& process = TheProcess();
  Call call(&process, "cuIpcCloseMemHandle", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto found = FindMapping(&process, address, MappedBy::kIpc);
  if (found == process.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.opens > 0) return CUDA_SUCCESS;
  Unmap(&process, found);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void* memory, size_t size, unsigned int flags) {
  Process& process = TheProcess();
  Call call(&process, "cuMemHostRegister", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (memory == nullptr || size == 0 || size > memtide::fake_cuda::kMostRegistered ||
      process.Overlaps(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (const auto& [start, registered] : process.registrations) {
    if (start < address + size && address < start + registered) {
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
  }
  if (!process.MayPin(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  process.registrations[address] = size;
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* memory) {
  Process& process = TheProcess();
  Call call(&process, "cuMemHostUnregister", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto found = process.registrations.find(reinterpret_cast<uintptr_t>(memory));
  if (found == process.registrations.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  // The pages may go elsewhere from here on, under a copy engine that has their physical addresses.
  BreakWorkOn(&process, {found->first, found->second});
  process.registrations.erase(found);
  return CUDA_SUCCESS;
}

}  // extern "C"

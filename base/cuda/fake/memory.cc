// cudaMalloc, legacy IPC handles, and pinned host memory.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/process.h"

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
static_assert(sizeof(IpcHandle) == sizeof(cudaIpcMemHandle_t));
constexpr char kMagic[8] = {'f', 'a', 'k', 'e', 'i', 'p', 'c', '1'};

// Null: the address space is exhausted.
void* MapAnywhere(const Physical& physical) {
  void* const at =
      mmap(nullptr, physical.facts().size, PROT_READ | PROT_WRITE, MAP_SHARED, physical.fd(), 0);
  if (at == MAP_FAILED) return nullptr;
  madvise(at, physical.facts().size, MADV_DONTFORK);
  return at;
}

// Finds the mapping that `by` made at exactly `address`. end(): there is none.
auto FindMapping(Process* process, const void* address, MappedBy by)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex) {
  const auto found = process->mappings.find(reinterpret_cast<uintptr_t>(address));
  const bool is = found != process->mappings.end() && found->second.by == by;
  return is ? found : process->mappings.end();
}

}  // namespace
}  // namespace memtide::fake_cuda

using memtide::fake_cuda::Access;
using memtide::fake_cuda::Call;
using memtide::fake_cuda::FindMapping;
using memtide::fake_cuda::IpcHandle;
using memtide::fake_cuda::kGranularity;
using memtide::fake_cuda::MapAnywhere;
using memtide::fake_cuda::MappedBy;
using memtide::fake_cuda::Mapping;
using memtide::fake_cuda::Physical;
using memtide::fake_cuda::PhysicalFacts;
using memtide::fake_cuda::Process;
using memtide::fake_cuda::Return;
using memtide::fake_cuda::TheProcess;

extern "C" {

cudaError_t cudaMalloc(void** address, size_t size) {
  Process& process = TheProcess();
  Call call(&process, "cudaMalloc");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  if (address == nullptr || size == 0) return Return(cudaErrorInvalidValue);
  PhysicalFacts facts;
  facts.device = process.visible.at(memtide::fake_cuda::t_ordinal);
  facts.size = (size + kGranularity - 1) / kGranularity * kGranularity;
  auto physical = Physical::Create(process.directory, process.settings.memory, facts);
  if (physical == nullptr) return Return(cudaErrorMemoryAllocation);
  *address = MapAnywhere(*physical);
  if (*address == nullptr) return Return(cudaErrorMemoryAllocation);
  process.mappings[reinterpret_cast<uintptr_t>(*address)] =
      Mapping{facts.size, MappedBy::kMalloc, Access::kWrite, std::move(physical)};
  return cudaSuccess;
}

// The fake does not pin: it allocates ordinary memory.
cudaError_t cudaMallocHost(void** address, size_t size) {
  Process& process = TheProcess();
  Call call(&process, "cudaMallocHost");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  *address = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  return Return(*address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFreeHost(void* address) {
  Process& process = TheProcess();
  Call call(&process, "cudaFreeHost");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  std::free(address);
  return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  Process& process = TheProcess();
  Call call(&process, "cudaFree");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  if (address == nullptr) return cudaSuccess;
  const auto found = FindMapping(&process, address, MappedBy::kMalloc);
  if (found == process.mappings.end()) return Return(cudaErrorInvalidValue);
  // A process that still has it open reads poison.
  std::memset(address, memtide::fake_cuda::kPoison, found->second.size);
  munmap(address, found->second.size);
  process.mappings.erase(found);
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  Process& process = TheProcess();
  Call call(&process, "cudaIpcGetMemHandle");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  const auto found = FindMapping(&process, address, MappedBy::kMalloc);
  if (found == process.mappings.end()) return Return(cudaErrorInvalidValue);
  IpcHandle made = {};
  std::memcpy(made.magic, memtide::fake_cuda::kMagic, sizeof(made.magic));
  made.exporter = process.token;
  const std::string& name = found->second.physical->name();
  if (name.size() >= sizeof(made.name)) return Return(cudaErrorInvalidValue);
  std::memcpy(made.name, name.data(), name.size());
  std::memcpy(handle, &made, sizeof(made));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned int flags) {
  Process& process = TheProcess();
  Call call(&process, "cudaIpcOpenMemHandle");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  IpcHandle made;
  std::memcpy(&made, &handle, sizeof(made));
  if (std::memcmp(made.magic, memtide::fake_cuda::kMagic, sizeof(made.magic)) != 0 ||
      flags != cudaIpcMemLazyEnablePeerAccess) {
    return Return(cudaErrorInvalidValue);
  }
  if (made.exporter == process.token) return Return(cudaErrorDeviceUninitialized);
  const std::string name(made.name, strnlen(made.name, sizeof(made.name)));
  for (auto& [at, mapping] : process.mappings) {
    if (mapping.by != MappedBy::kIpc || mapping.physical->name() != name) continue;
    ++mapping.opens;
    *address = reinterpret_cast<void*>(at);
    return cudaSuccess;
  }
  auto physical = Physical::Open(process.directory, name);
  if (physical == nullptr) return Return(cudaErrorMapBufferObjectFailed);
  *address = MapAnywhere(*physical);
  if (*address == nullptr) return Return(cudaErrorMapBufferObjectFailed);
  const uint64_t size = physical->facts().size;
  process.mappings[reinterpret_cast<uintptr_t>(*address)] =
      Mapping{size, MappedBy::kIpc, Access::kWrite, std::move(physical)};
  return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
  Process& process = TheProcess();
  Call call(&process, "cudaIpcCloseMemHandle");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  const auto found = FindMapping(&process, address, MappedBy::kIpc);
  if (found == process.mappings.end()) return Return(cudaErrorInvalidValue);
  if (--found->second.opens > 0) return cudaSuccess;
  munmap(address, found->second.size);
  process.mappings.erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, size_t size, unsigned int flags) {
  Process& process = TheProcess();
  Call call(&process, "cudaHostRegister");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (memory == nullptr || size == 0 || size > memtide::fake_cuda::kMostRegistered ||
      process.Overlaps(address, size)) {
    return Return(cudaErrorInvalidValue);
  }
  for (const auto& [start, registered] : process.registrations) {
    if (start < address + size && address < start + registered) {
      return Return(cudaErrorHostMemoryAlreadyRegistered);
    }
  }
  process.registrations[address] = size;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* memory) {
  Process& process = TheProcess();
  Call call(&process, "cudaHostUnregister");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  const bool was = process.registrations.erase(reinterpret_cast<uintptr_t>(memory)) == 1;
  return Return(was ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

}  // extern "C"

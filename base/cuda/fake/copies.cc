// Copies and fills, which streams perform with a delay.
#include <cstring>

#include "base/cuda/fake/process.h"
#include "base/cuda/fake/streams.h"

namespace memtide::fake_cuda {
namespace {

// One side of a copy.
struct Side {
  uintptr_t address = 0;
  bool device = false;
};

// CUDA recognizes device memory by its address. Returns false if `kind` contradicts it.
bool SidesOf(const Process& process, void* to, const void* from, size_t size, cudaMemcpyKind kind,
             Side* target, Side* source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process.mutex) {
  target->address = reinterpret_cast<uintptr_t>(to);
  source->address = reinterpret_cast<uintptr_t>(from);
  target->device = process.Overlaps(target->address, size);
  source->device = process.Overlaps(source->address, size);
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !target->device && !source->device;
    case cudaMemcpyHostToDevice:
      return target->device && !source->device;
    case cudaMemcpyDeviceToHost:
      return !target->device && source->device;
    case cudaMemcpyDeviceToDevice:
      return target->device && source->device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

cudaError_t Copy(Process* process, void* to, const void* from, size_t size, cudaMemcpyKind kind,
                 Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  Side target, source;
  if (!SidesOf(*process, to, from, size, kind, &target, &source)) return cudaErrorInvalidValue;
  const auto copy = [=]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex) {
    if ((target.device && !process->MayUse(target.address, size, Access::kWrite)) ||
        (source.device && !process->MayUse(source.address, size, Access::kRead))) {
      process->Break(cudaErrorIllegalAddress);
      return;
    }
    std::memmove(to, from, size);
  };
  stream->Push(process, copy, {{target.address, size}, {source.address, size}});
  return cudaSuccess;
}

}  // namespace
}  // namespace memtide::fake_cuda

using memtide::fake_cuda::Access;
using memtide::fake_cuda::Await;
using memtide::fake_cuda::Call;
using memtide::fake_cuda::Copy;
using memtide::fake_cuda::FindStream;
using memtide::fake_cuda::Mark;
using memtide::fake_cuda::Process;
using memtide::fake_cuda::Return;
using memtide::fake_cuda::Stream;
using memtide::fake_cuda::TheProcess;

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  Process& process = TheProcess();
  Call call(&process, "cudaMemcpyAsync");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  return Return(Copy(&process, to, from, size, kind, FindStream(&process, stream)));
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  Process& process = TheProcess();
  Call call(&process, "cudaMemcpy");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  Stream* const stream = FindStream(&process, nullptr);
  const cudaError_t error = Copy(&process, to, from, size, kind, stream);
  if (error != cudaSuccess) return Return(error);
  const auto mark = std::make_shared<Mark>(Mark{1});
  stream->Push(&process, mark);
  return Return(Await(&process, mark));
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t size, cudaStream_t stream) {
  Process& process = TheProcess();
  Call call(&process, "cudaMemsetAsync");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  Stream* const found = FindStream(&process, stream);
  if (found == nullptr) return Return(cudaErrorInvalidResourceHandle);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (!process.Overlaps(address, size)) return Return(cudaErrorInvalidValue);
  const auto fill = [&process, memory, address, value, size]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(process.mutex) {
                          if (process.MayUse(address, size, Access::kWrite)) {
                            std::memset(memory, value, size);
                          } else {
                            process.Break(cudaErrorIllegalAddress);
                          }
                        };
  found->Push(&process, fill, {{address, size}});
  return cudaSuccess;
}

// Like in CUDA, cudaMemset is asynchronous to the host.
cudaError_t cudaMemset(void* memory, int value, size_t size) {
  return cudaMemsetAsync(memory, value, size, nullptr);
}

}  // extern "C"

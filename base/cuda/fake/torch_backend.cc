#include "base/cuda/fake/torch_backend.h"

#include <memory>
#include <vector>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/kernel.h"
#include "base/cuda/fake/process.h"
#include "base/cuda/fake/streams.h"

namespace memtide::fake_cuda {
namespace {

// Does what the CUDA runtime does for a thread that has no context yet.
CUresult UseSomeGpu() {
  if (t_has_context) return CUDA_SUCCESS;
  CUcontext context = nullptr;
  CUresult error = cuInit(0);
  if (error == CUDA_SUCCESS) error = cuDevicePrimaryCtxRetain(&context, 0);
  if (error == CUDA_SUCCESS) error = cuCtxSetCurrent(context);
  return error;
}

}  // namespace
}  // namespace memtide::fake_cuda

using memtide::fake_cuda::Call;
using memtide::fake_cuda::FindStream;
using memtide::fake_cuda::Kernel;
using memtide::fake_cuda::Needs;
using memtide::fake_cuda::OfKernel;
using memtide::fake_cuda::Process;
using memtide::fake_cuda::TheProcess;
using memtide::fake_cuda::UseSomeGpu;

extern "C" {

int memtide_fake_launch(const memtide_fake_operand* operands, size_t count,
                        memtide_fake_kernel kernel) {
  auto queued = std::make_shared<Kernel>(
      std::vector<memtide_fake_operand>(operands, operands + count), kernel);
  const CUresult error = UseSomeGpu();
  if (error != CUDA_SUCCESS) return error;
  Process& process = TheProcess();
  memtide_fake_spend("launch");
  Call call(&process, "cuLaunchKernel", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto run = [&process, queued]()
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(process.mutex) { queued->Run(&process); };
  FindStream(&process, nullptr)
      ->Push(&process, run, queued->accessed(), OfKernel(&process, {kernel.flop, kernel.bytes}));
  return CUDA_SUCCESS;
}

int memtide_fake_synchronize() {
  const CUresult error = UseSomeGpu();
  return error == CUDA_SUCCESS ? cuCtxSynchronize() : error;
}

int memtide_fake_malloc(void** address, size_t size) {
  const CUresult error = UseSomeGpu();
  if (error != CUDA_SUCCESS) return error;
  CUdeviceptr memory = 0;
  const CUresult result = cuMemAlloc(&memory, size);
  *address = reinterpret_cast<void*>(memory);
  return result;
}

int memtide_fake_free(void* address) {
  const CUresult error = UseSomeGpu();
  return error == CUDA_SUCCESS ? cuMemFree(reinterpret_cast<CUdeviceptr>(address)) : error;
}

int memtide_fake_memory(size_t* free, size_t* total) {
  const CUresult error = UseSomeGpu();
  return error == CUDA_SUCCESS ? cuMemGetInfo(free, total) : error;
}

const char* memtide_fake_error(int status) {
  const char* text = nullptr;
  const CUresult error = cuGetErrorString(static_cast<CUresult>(status), &text);
  return error == CUDA_SUCCESS ? text : "unknown error";
}

void memtide_fake_spend(const char* work) {
  const Process& process = TheProcess();
  if (process.card != nullptr) process.card->Spend(work);
}

uint64_t memtide_fake_calls(const char* name) { return memtide::fake_cuda::CallCount(name); }

}  // extern "C"

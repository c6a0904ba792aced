// Probes what happens to memory in use when its mapping changes under a kernel. A kernel may break
// the context of this process, so each probe ends with the last answer.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "bench/gpu/kernels.h"
#include "bench/gpu/mapped_memory.h"
#include "bench/gpu/probes.h"
#include "bench/gpu/report.h"
#include "bench/gpu/stream.h"

namespace memtide::bench {
namespace {

constexpr size_t kChunk = 64 << 20;

std::chrono::milliseconds KernelTime() { return std::chrono::milliseconds(Scaled(30, 3)); }

// Returns when a kernel that has been launched, behind nothing else, has begun.
void AwaitBegin() {
  // tidy(sleep): the driver does not say when a kernel begins, which takes microseconds.
  std::this_thread::sleep_for(KernelTime() / 4);
}

// Ends the process without giving anything back to a context that may be broken.
[[noreturn]] void End() { std::_Exit(0); }

std::string Outcome(CUresult error) {
  return error == CUDA_SUCCESS ? "works" : "breaks the context: " + NameOf(error);
}

}  // namespace

void ProbeUpgradeInUse() {
  const Kernels kernels;
  MappedMemory memory = MappedMemory::Create(kChunk);
  memory.Map();
  memory.SetAccess(CU_MEM_ACCESS_FLAGS_PROT_READ);
  Stream stream;
  std::vector<double> times;
  CUresult error = CUDA_SUCCESS;
  bool still_ran = false;
  for (int i = 0; i < Scaled(20, 2) && error == CUDA_SUCCESS; ++i) {
    stream.AwaitTurn();
    kernels.Read(stream.get(), memory.data(), memory.size(), KernelTime());
    stream.Mark();
    AwaitBegin();
    const Instant start = Now();
    memory.SetAccess(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    times.push_back(MicrosecondsSince(start));
    still_ran = stream.IsBusy();
    error = stream.Finish();
    if (error == CUDA_SUCCESS) memory.SetAccess(CU_MEM_ACCESS_FLAGS_PROT_READ);
  }
  Answer("read-only to writable under a kernel that reads the memory", Outcome(error));
  MedianAndWorst("the call that does it", &times);
  Answer("the kernel still ran after the call", still_ran ? "yes" : "no, or it was broken");
  End();
}

void ProbeUnmapInUse() {
  const Kernels kernels;
  MappedMemory other = MappedMemory::Create(kChunk);
  MappedMemory memory = MappedMemory::Create(kChunk);
  other.Map();
  memory.Map();
  Stream stream;
  stream.AwaitTurn();
  kernels.Read(stream.get(), other.data(), other.size(), KernelTime());
  stream.Mark();
  AwaitBegin();
  memory.Unmap();
  memory.Map();
  const bool waited = !stream.IsBusy();
  Answer("unmapping and mapping beside an unrelated kernel",
         stream.Finish() == CUDA_SUCCESS ? waited ? "waits for the kernel" : "does not wait"
                                         : "breaks the context");
  stream.AwaitTurn();
  kernels.Read(stream.get(), memory.data(), memory.size(), KernelTime());
  AwaitBegin();
  const Instant start = Now();
  memory.Unmap();
  const double time = MicrosecondsSince(start);
  Answer("unmapping memory under a kernel that reads it", Outcome(stream.Finish()));
  Figure("the call that unmaps it", time, "us");
  End();
}

}  // namespace memtide::bench

#include "bench/gpu/kernels.h"

#include "base/cuda/loader.h"
#include "bench/gpu/mapped_memory.h"

namespace memtide::bench {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kReaders = 64;  // Blocks: some of a GPU's, so that others can run beside them.
constexpr unsigned kComputers = 1024;  // Blocks: all that any GPU has room for.

// In each, %globaltimer is the GPU's clock in nanoseconds. A volatile access is never left out.
constexpr char kPtx[] = R"(
.version 6.3
.target sm_75
.address_size 64

.visible .entry memtide_read(.param .u64 memory, .param .u64 words, .param .u64 time) {
  .reg .pred %more;
  .reg .b32 %block, %threads, %thread, %first, %word;
  .reg .b64 %base, %words, %end, %place, %offset, %address, %now;
  ld.param.u64 %base, [memory];
  ld.param.u64 %words, [words];
  ld.param.u64 %end, [time];
  cvta.to.global.u64 %base, %base;
  mov.u64 %now, %globaltimer;
  add.u64 %end, %end, %now;
  mov.u32 %block, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %first, %block, %threads, %thread;
  cvt.u64.u32 %place, %first;
again:
  rem.u64 %offset, %place, %words;
  shl.b64 %offset, %offset, 2;
  add.u64 %address, %base, %offset;
  ld.volatile.global.u32 %word, [%address];
  add.u64 %place, %place, 1048583;
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %more, %now, %end;
  @%more bra again;
  ret;
}

.visible .entry memtide_count(.param .u64 word, .param .u64 time) {
  .reg .pred %more;
  .reg .b32 %count;
  .reg .b64 %address, %end, %now;
  ld.param.u64 %address, [word];
  ld.param.u64 %end, [time];
  cvta.to.global.u64 %address, %address;
  mov.u64 %now, %globaltimer;
  add.u64 %end, %end, %now;
  mov.u32 %count, 0;
again:
  add.u32 %count, %count, 1;
  st.volatile.global.u32 [%address], %count;
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %more, %now, %end;
  @%more bra again;
  ret;
}

.visible .entry memtide_compute(.param .u64 sink, .param .u64 rounds) {
  .reg .pred %more, %never;
  .reg .f32 %sum;
  .reg .b64 %address, %left;
  ld.param.u64 %address, [sink];
  ld.param.u64 %left, [rounds];
  cvta.to.global.u64 %address, %address;
  mov.f32 %sum, 0f3F800000;
again:
  fma.rn.f32 %sum, %sum, 0f3F800347, 0f3F000000;
  sub.u64 %left, %left, 1;
  setp.ne.u64 %more, %left, 0;
  @%more bra again;
  setp.lt.f32 %never, %sum, 0f00000000;
  @%never st.global.f32 [%address], %sum;
  ret;
}
)";

template <typename Function>
Function Find(const char* name) {
  const auto find = FindCuGetProcAddress();
  OrDie(find.status());
  void* found = nullptr;
  CUdriverProcAddressQueryResult unused = {};
  OrDie((*find)(name, &found, kOldestCuda, 0, &unused), name);
  return reinterpret_cast<Function>(found);
}

uint64_t Nanoseconds(std::chrono::nanoseconds time) { return static_cast<uint64_t>(time.count()); }

}  // namespace

Kernels::Kernels() : launch_(Find<decltype(&cuLaunchKernel)>("cuLaunchKernel")) {
  UseFirstGpu();
  CUmodule module = nullptr;
  OrDie(Find<decltype(&cuModuleLoadData)>("cuModuleLoadData")(&module, kPtx), "cuModuleLoadData");
  const auto find = Find<decltype(&cuModuleGetFunction)>("cuModuleGetFunction");
  OrDie(find(&read_, module, "memtide_read"), "cuModuleGetFunction");
  OrDie(find(&count_, module, "memtide_count"), "cuModuleGetFunction");
  OrDie(find(&compute_, module, "memtide_compute"), "cuModuleGetFunction");
}

void Kernels::Read(CUstream stream, CUdeviceptr memory, size_t size,
                   std::chrono::nanoseconds time) const {
  uint64_t words = size / 4, duration = Nanoseconds(time);
  void* parameters[] = {&memory, &words, &duration};
  OrDie(launch_(read_, kReaders, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr),
        "launching a kernel");
}

void Kernels::Count(CUstream stream, CUdeviceptr word, std::chrono::nanoseconds time) const {
  uint64_t duration = Nanoseconds(time);
  void* parameters[] = {&word, &duration};
  OrDie(launch_(count_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr), "launching a kernel");
}

void Kernels::Compute(CUstream stream, CUdeviceptr sink, uint64_t rounds) const {
  void* parameters[] = {&sink, &rounds};
  OrDie(launch_(compute_, kComputers, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr),
        "launching a kernel");
}

}  // namespace memtide::bench

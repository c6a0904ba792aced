// Measures mapping, unmapping and access changes of GPU memory.
#include "absl/strings/str_cat.h"
#include "bench/gpu/mapped_memory.h"
#include "bench/gpu/probes.h"
#include "bench/gpu/report.h"

namespace memtide::bench {
namespace {

constexpr int kRounds = 21;

}  // namespace

void ProbeMapping() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t granularity = 0;
  OrDie(Driver().MemGetAllocationGranularity(&granularity, &properties,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
  Figure("granularity of GPU memory", static_cast<double>(granularity) / (1 << 20), "MiB");
  for (const size_t mib : {2, 64, 512}) {
    MappedMemory memory = MappedMemory::Create(mib << 20);
    std::vector<double> unmap;
    const double both = MedianMicroseconds(kRounds, [&] {
      memory.Map();
      const Instant start = Now();
      memory.Unmap();
      unmap.push_back(std::chrono::duration<double, std::micro>(Now() - start).count());
    });
    std::sort(unmap.begin(), unmap.end());
    const double unmapping = unmap[unmap.size() / 2];
    Figure(absl::StrCat("map ", mib, " MiB and open it for access"), both - unmapping, "us");
    Figure(absl::StrCat("unmap ", mib, " MiB"), unmapping, "us");
  }
  MappedMemory memory = MappedMemory::Create(2 << 20);
  memory.Map();
  memory.Fill('a');
  memory.SetAccess(CU_MEM_ACCESS_FLAGS_PROT_READ);
  Answer("memory can be mapped for reading only", memory.Holds('a') ? "yes" : "no");
  Figure("read-only to writable and back, 2 MiB",
         MedianMicroseconds(kRounds,
                            [&] {
                              memory.SetAccess(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
                              memory.SetAccess(CU_MEM_ACCESS_FLAGS_PROT_READ);
                            }),
         "us");
  ProbeFences();
  ProbeBusy();
}

// Measures whether mapping waits for the GPU's work, in which case the two cannot overlap.
void ProbeBusy() {
  constexpr size_t kWork = 256 << 20;
  constexpr int kRounds = 64;
  MappedMemory work = MappedMemory::Create(kWork);
  work.Map();
  MappedMemory chunk = MappedMemory::Create(64 << 20);
  UseFirstGpu();
  CUstream stream = nullptr;
  OrDie(Driver().StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const auto begin_work = [&] {
    for (int i = 0; i < kRounds; ++i) {
      const auto value = static_cast<unsigned char>(i);
      OrDie(Driver().MemsetD8Async(work.data(), value, work.size(), stream), "cuMemsetD8Async");
    }
  };
  const auto microseconds_since = [](Instant start) {
    return std::chrono::duration<double, std::micro>(Now() - start).count();
  };
  begin_work();
  Instant start = Now();
  chunk.Map();
  Figure("map 64 MiB while the GPU is busy", microseconds_since(start), "us");
  start = Now();
  chunk.SetAccess(CU_MEM_ACCESS_FLAGS_PROT_READ);
  Figure("change its access while the GPU is busy", microseconds_since(start), "us");
  start = Now();
  chunk.Unmap();
  Figure("unmap it while the GPU is busy", microseconds_since(start), "us");
  start = Now();
  OrDie(Driver().StreamSynchronize(stream), "cuStreamSynchronize");
  Figure("the GPU's work went on for", microseconds_since(start), "us");
  OrDie(Driver().StreamDestroy(stream), "cuStreamDestroy");
}

// Measures cuCtxRecordEvent: the client unmaps after an event that covers all work of the context.
void ProbeFences() {
  if (Driver().CtxRecordEvent == nullptr) {
    Answer("an event can hold all work of a context (cuCtxRecordEvent)", "no: older driver");
    return;
  }
  UseFirstGpu();
  CUcontext context = nullptr;
  OrDie(Driver().CtxGetCurrent(&context), "cuCtxGetCurrent");
  CUevent event = nullptr;
  OrDie(Driver().EventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  Figure("recording all work of a context",
         MedianMicroseconds(
             kRounds, [&] { OrDie(Driver().CtxRecordEvent(context, event), "cuCtxRecordEvent"); }),
         "us");
  OrDie(Driver().EventDestroy(event), "cuEventDestroy");
}

}  // namespace memtide::bench

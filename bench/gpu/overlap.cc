// Measures kernels of this process beside copies of another one, as those of a script beside the
// daemon's, and what a remapping takes meanwhile.
#include <string>
#include <thread>
#include <vector>

#include "bench/gpu/copier.h"
#include "bench/gpu/kernels.h"
#include "bench/gpu/mapped_memory.h"
#include "bench/gpu/probes.h"
#include "bench/gpu/report.h"
#include "bench/gpu/stream.h"

namespace memtide::bench {
namespace {

constexpr size_t kMemory = 256 << 20;
constexpr size_t kChunk = 64 << 20;
constexpr double kKernelsGoal = 0.95;
constexpr double kCopiesGoal = 0.9;

std::chrono::milliseconds Period() { return std::chrono::milliseconds(Scaled(1000, 10)); }

// Calls `launch`, waits for its work, and so on for a period. Returns the launches in a second.
template <typename Launch>
double Rate(const Stream& stream, const Launch& launch) {
  constexpr int kLaunches = 8;
  const Instant start = Now();
  int done = 0;
  while (Now() - start < Period()) {
    for (int i = 0; i < kLaunches; ++i) launch();
    OrDie(stream.Finish(), "running kernels");
    done += kLaunches;
  }
  return done / MicrosecondsSince(start) * 1e6;
}

template <typename Launch>
void Beside(const std::string& name, const Stream& stream, Copier* copier, double copies_alone,
            const Launch& launch) {
  Rate(stream, launch);
  const double alone = Rate(stream, launch);
  copier->Start();
  const double beside = Rate(stream, launch);
  const double copies = copier->Stop();
  Ratio(name + " beside another process's copies, to alone", beside / alone, kKernelsGoal);
  Ratio("another process's copies beside " + name + ", to alone", copies / copies_alone,
        kCopiesGoal);
}

// The speed of copies while this process does nothing, in GB/s.
double CopiesAlone(const std::vector<Copier*>& copiers) {
  for (Copier* const copier : copiers) copier->Start();
  // tidy(sleep): the copies are measured while this process does nothing.
  std::this_thread::sleep_for(Period());
  double sum = 0;
  for (Copier* const copier : copiers) sum += copier->Stop();
  return sum;
}

void Remap(const std::string& when) {
  MappedMemory chunk = MappedMemory::Create(kChunk);
  std::vector<double> map, open, unmap;
  for (int i = 0; i < Scaled(101, 3); ++i) {
    Instant start = Now();
    chunk.MapClosed();
    const Instant mapped = Now();
    chunk.SetAccess(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    open.push_back(MicrosecondsSince(mapped));
    map.push_back(MicrosecondsSince(start));
    start = Now();
    chunk.Unmap();
    unmap.push_back(MicrosecondsSince(start));
  }
  MedianAndWorst("map 64 MiB and open it, " + when, &map);
  MedianAndWorst("open it alone, " + when, &open);
  MedianAndWorst("unmap it, " + when, &unmap);
}

}  // namespace

void ProbeOverlap() {
  const Kernels kernels;
  MappedMemory memory = MappedMemory::Create(kMemory);
  memory.Map();
  const Stream stream;
  Copier first, second;
  CopiesAlone({&first});
  const double alone = CopiesAlone({&first});
  Figure("copies both ways by another process, alone", alone, "GB/s");
  Ratio("copies of two processes together, to those of one", CopiesAlone({&first, &second}) / alone,
        kCopiesGoal);
  Beside("arithmetic", stream, &first, alone,
         [&] { kernels.Compute(stream.get(), memory.data(), Scaled<uint64_t>(200000, 2000)); });
  Beside("filling memory", stream, &first, alone, [&] {
    OrDie(Driver().MemsetD8Async(memory.data(), 1, Scaled(kMemory, size_t{1} << 20), stream.get()),
          "cuMemsetD8Async");
  });
}

void ProbeRemap() {
  const Kernels kernels;
  MappedMemory memory = MappedMemory::Create(kMemory);
  memory.Map();
  Remap("the GPU idle");
  const Stream stream;
  kernels.Read(stream.get(), memory.data(), memory.size(),
               std::chrono::milliseconds(Scaled(1000, 3)));
  Remap("under another kernel");
  OrDie(stream.Finish(), "running a kernel");
  for (const std::string ways : {"both", "in", "out"}) {
    Copier copier(ways);
    copier.Start();
    Remap("under another process's copies" + (ways == "both" ? "" : " " + ways));
    copier.Stop();
  }
}

}  // namespace memtide::bench

// Measures mapping, unmapping and access changes of GPU memory.
#include "absl/strings/str_cat.h"
#include "bench/gpu/mapped_memory.h"
#include "bench/gpu/probes.h"
#include "bench/gpu/report.h"

namespace memtide::bench {
namespace {

int Rounds() { return Scaled(21, 3); }

}  // namespace

void ProbeMapping() {
  // Programs of memtide's map with a context. Without one a map took 567 us on an H100, for 26.
  UseFirstGpu();
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t granularity = 0;
  OrDie(Driver().vmm.GetAllocationGranularity(&granularity, &properties,
                                              CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
  Figure("granularity of GPU memory", static_cast<double>(granularity) / (1 << 20), "MiB");
  for (const size_t mib : {2, 64, 512}) {
    MappedMemory memory = MappedMemory::Create(mib << 20);
    std::vector<double> unmap;
    const double both = MedianMicroseconds(Rounds(), [&] {
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
         MedianMicroseconds(Rounds(),
                            [&] {
                              memory.SetAccess(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
                              memory.SetAccess(CU_MEM_ACCESS_FLAGS_PROT_READ);
                            }),
         "us");
}

}  // namespace memtide::bench

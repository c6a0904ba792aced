// PageFaults: counts the page faults of a process, as the CPU raises them.
//
// It opens a perf event on each thread that the process has now. The kernel's own count (minflt)
// would be wrong: it also counts each huge page that MAP_POPULATE fills in without a fault.
// CHECK-fails if perf events are not permitted (kernel.perf_event_paranoid above 2).
#ifndef MEMTIDE_BENCH_PAGE_FAULTS_H_
#define MEMTIDE_BENCH_PAGE_FAULTS_H_

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace memtide {

class PageFaults {
 public:
  explicit PageFaults(pid_t process);
  ~PageFaults();
  PageFaults(const PageFaults&) = delete;
  PageFaults& operator=(const PageFaults&) = delete;

  // The number of faults since construction.
  uint64_t Count() const;

 private:
  std::vector<int> events_;
};

}  // namespace memtide

#endif  // MEMTIDE_BENCH_PAGE_FAULTS_H_

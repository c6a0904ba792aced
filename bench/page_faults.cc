#include "bench/page_faults.h"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "bench/harness.h"

namespace memtide {

PageFaults::PageFaults(pid_t process) {
  perf_event_attr attributes = {};
  attributes.type = PERF_TYPE_SOFTWARE;
  attributes.size = sizeof(attributes);
  attributes.config = PERF_COUNT_SW_PAGE_FAULTS;
  for (const pid_t thread : ThreadsOf(process)) {
    constexpr int kAnyCpu = -1, kNoGroup = -1;
    const long event =
        syscall(SYS_perf_event_open, &attributes, thread, kAnyCpu, kNoGroup, PERF_FLAG_FD_CLOEXEC);
    MEMTIDE_CHECK(event >= 0) << "perf_event_open: " << strerror(errno)
                              << "; see kernel.perf_event_paranoid";
    events_.push_back(static_cast<int>(event));
  }
}

PageFaults::~PageFaults() {
  for (const int event : events_) close(event);
}

uint64_t PageFaults::Count() const {
  uint64_t sum = 0;
  for (const int event : events_) {
    uint64_t count = 0;
    MEMTIDE_CHECK(read(event, &count, sizeof(count)) == sizeof(count)) << strerror(errno);
    sum += count;
  }
  return sum;
}

}  // namespace memtide

// GoesFirst: while it lives, its thread goes before all threads of ordinary priority, of this
// process and of others (SCHED_RR, at the lowest real-time priority).
//
// It is for short work that all clients wait for. A thread of ordinary priority that waits for a
// CPU beside busy ones gets it with a tick of the kernel, after 3 to 5 ms.
//
// A process may do so with CAP_SYS_NICE, or if its limit RLIMIT_RTPRIO is 1 or more (LimitRTPRIO=
// of a unit). In others nothing changes. The kernel leaves threads of ordinary priority a share of
// each CPU, whatever threads of real-time priority do (sched(7)).
//
// Thread safety: thread-safe; each object is one thread's. Objects of one thread do not overlap.
#ifndef MEMTIDE_BASE_GOES_FIRST_H_
#define MEMTIDE_BASE_GOES_FIRST_H_

namespace memtide {

class GoesFirst {
 public:
  GoesFirst();
  ~GoesFirst();
  GoesFirst(const GoesFirst&) = delete;
  GoesFirst& operator=(const GoesFirst&) = delete;

 private:
  const bool changed_;
};

}  // namespace memtide

#endif  // MEMTIDE_BASE_GOES_FIRST_H_

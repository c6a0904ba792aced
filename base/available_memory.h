// AvailableMemory: how much memory this process can still fill before the kernel kills a process.
//
// It is the smaller of the machine's MemAvailable and what is left of the limits of this process's
// cgroups (version 1 or 2, its own or a parent). Page cache counts as available in both. An
// estimate, for refusing requests that cannot work: other processes allocate too.
#ifndef MEMTIDE_BASE_AVAILABLE_MEMORY_H_
#define MEMTIDE_BASE_AVAILABLE_MEMORY_H_

#include <sys/types.h>

#include <string>

#include "base/bytes.h"

namespace memtide {

struct AvailableMemory {
  Bytes bytes;
  // The name of the limit: "this machine", or "cgroup /sys/fs/cgroup/...".
  std::string limited_by;
  Bytes limit = Bytes(0);  // The cgroup's; zero: the machine leaves least.
};

// Reads the kernel's files below `root`, which tests replace. `own` is memory in use that counts as
// available, because the caller is about to own it; the result exceeds no limit for that.
AvailableMemory GetAvailableMemory(const std::string& root = "", Bytes own = Bytes());

// The bytes that a limit on two processes leaves: it counts the anonymous memory of this one and of
// `other`, and the shared memory of this one. A process that has ended uses nothing.
Bytes LeftOfLimit(Bytes limit, pid_t other, const std::string& root = "");

}  // namespace memtide

#endif  // MEMTIDE_BASE_AVAILABLE_MEMORY_H_

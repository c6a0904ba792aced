// PersistedMemory: how much memory the jobs of the last daemon have, which decides the sizes of
// this daemon's pools. The service manager holds that memory until this daemon restores the jobs:
// the machine counts it as used, and it is the daemon's own.
#ifndef MEMTIDE_DAEMON_RECOVERY_PERSISTED_MEMORY_H_
#define MEMTIDE_DAEMON_RECOVERY_PERSISTED_MEMORY_H_

#include <cstdint>
#include <map>
#include <vector>

#include "base/bytes.h"

namespace memtide {

struct PersistedMemory {
  // Whether there is any: then the daemon must start, or the jobs are lost.
  bool any = false;
  // In use now: memory, and blocks of each file system (by its device number).
  Bytes memory;
  std::map<uint64_t, Bytes> blocks;
  // The least pools that the jobs fit into again; of devices by number, those without jobs may be
  // left out.
  std::vector<Bytes> device_pools;
  Bytes host_pool, ssd_pool;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_RECOVERY_PERSISTED_MEMORY_H_

// OpenDisk: the Disk of a set of directories, on io_uring if the kernel allows it.
#ifndef MEMTIDE_DAEMON_IO_OPEN_DISK_H_
#define MEMTIDE_DAEMON_IO_OPEN_DISK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/io/disk.h"
#include "daemon/io/io_scheduler.h"

namespace memtide {

enum class DiskEngine { kBest, kUring, kThreads };

struct DiskOptions {
  // StoreDirectory::Claim says which directories are accepted.
  std::vector<std::string> directories;
  // The size of all stores together. No directory gets more of it than it has room for. Zero: the
  // directories have room for all.
  Bytes pool;
  // Blocks that stores of an earlier process have, by the device number of the file system. They
  // are part of `pool`.
  std::map<uint64_t, Bytes> persisted;
  DiskEngine engine = DiskEngine::kBest;
  IoSchedulerOptions scheduler;
};

// Claims the directories. Where they are on several drives, measures the speed of each, in 0.8 s,
// and stripes stores accordingly (StripesBySpeed). If the kernel refuses io_uring, kBest falls back
// to threads, and the disk's Describe says why; kUring returns UNAVAILABLE. INVALID_ARGUMENT
// without directories, or with more than kMostStripesPerCycle; otherwise the errors of
// StoreDirectory::Claim.
absl::StatusOr<std::unique_ptr<Disk>> OpenDisk(const DiskOptions& options);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_OPEN_DISK_H_

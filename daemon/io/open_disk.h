// OpenDisk: the Disk of a set of directories, on io_uring if the kernel allows it.
#ifndef MEMTIDE_DAEMON_IO_OPEN_DISK_H_
#define MEMTIDE_DAEMON_IO_OPEN_DISK_H_

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
  DiskEngine engine = DiskEngine::kBest;
  IoSchedulerOptions scheduler;
};

// Claims the directories. If the kernel refuses io_uring, kBest falls back to threads, and the
// disk's Describe says why; kUring returns UNAVAILABLE. INVALID_ARGUMENT without directories;
// otherwise the errors of StoreDirectory::Claim.
absl::StatusOr<std::unique_ptr<Disk>> OpenDisk(const DiskOptions& options);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_OPEN_DISK_H_

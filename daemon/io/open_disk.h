// OpenDisk: the Disk for a set of directories, on io_uring where it is to be had.
#ifndef MEMTIDE_DAEMON_IO_OPEN_DISK_H_
#define MEMTIDE_DAEMON_IO_OPEN_DISK_H_

#include <memory>
#include <string>
#include <vector>

#include "daemon/io/disk.h"
#include "daemon/io/lanes.h"

namespace memtide {

enum class DiskEngine { kBest, kUring, kThreads };

struct DiskOptions {
  // See StoreDirectory::Claim for what may be used.
  std::vector<std::string> directories;
  DiskEngine engine = DiskEngine::kBest;
  LaneOptions lanes;
};

// Claims the directories. With kBest, a refusal of io_uring leads to threads, and the disk's
// Describe says why; with kUring it is returned (UNAVAILABLE). INVALID_ARGUMENT without
// directories; else what StoreDirectory::Claim says.
absl::StatusOr<std::unique_ptr<Disk>> OpenDisk(const DiskOptions& options);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_OPEN_DISK_H_

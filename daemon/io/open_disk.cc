#include "daemon/io/open_disk.h"

#include <utility>

#include "base/status_macros.h"
#include "daemon/io/store_table.h"
#include "daemon/io/thread_disk.h"
#include "daemon/io/uring_disk.h"

namespace memtide {

absl::StatusOr<std::unique_ptr<Disk>> OpenDisk(const DiskOptions& options) {
  if (options.directories.empty()) {
    return absl::InvalidArgumentError("a disk needs at least one directory");
  }
  MEMTIDE_ASSIGN_OR_RETURN(std::shared_ptr<StoreTable> stores,
                           StoreTable::Open(options.directories));
  std::string why = "io_uring is switched off";
  if (options.engine != DiskEngine::kThreads) {
    absl::StatusOr<std::unique_ptr<UringDisk>> disk = UringDisk::Create(stores, options.scheduler);
    if (disk.ok()) return std::unique_ptr<Disk>(*std::move(disk));
    // Sandboxes often refuse io_uring; threads do the same at a higher cost of CPU time.
    if (options.engine == DiskEngine::kUring) return disk.status();
    why = std::string(disk.status().message());
  }
  return std::unique_ptr<Disk>(
      std::make_unique<ThreadDisk>(std::move(stores), options.scheduler, std::move(why)));
}

}  // namespace memtide

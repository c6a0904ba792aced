#include "daemon/io/open_disk.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/io/drive_speed.h"
#include "daemon/io/store_table.h"
#include "daemon/io/stripes_by_speed.h"
#include "daemon/io/thread_disk.h"
#include "daemon/io/uring_disk.h"

namespace memtide {
namespace {

double PartOf(Bytes room, Bytes whole) {
  if (room >= whole) return 1;
  return static_cast<double>(room.count()) / static_cast<double>(whole.count());
}

// The largest part of each new store that the directory has room for, beside the stores of an
// earlier process and also when these are gone.
double LargestPart(const DiskOptions& options, const StoreTable& stores, size_t directory) {
  const std::vector<size_t>& drives = stores.drives();
  const auto sharers =
      static_cast<uint64_t>(std::count(drives.begin(), drives.end(), drives[directory]));
  const Bytes free = stores.directories()[directory].Free();
  Bytes persisted, persisted_here;
  for (const auto& [drive, bytes] : options.persisted) {
    persisted += bytes;
    if (drive == stores.directories()[directory].drive()) persisted_here = bytes;
  }
  const Bytes later = Bytes((free + persisted_here).count() / sharers);
  const Bytes now = Bytes(free.count() / sharers);
  const Bytes left = options.pool - std::min(options.pool, persisted);
  return std::min(PartOf(later, options.pool), PartOf(now, left));
}

void StripeBySpeed(const DiskOptions& options, Disk* disk, StoreTable* stores) {
  const std::vector<absl::StatusOr<double>> speeds = MeasureDrives(disk, stores);
  std::vector<StripedDirectory> directories;
  std::vector<double> measured;
  for (size_t i = 0; i < stores->drives().size(); ++i) {
    const size_t drive = stores->drives()[i];
    measured.push_back(speeds[drive].ok() ? *speeds[drive] : 0);
    directories.push_back({drive, measured.back(), LargestPart(options, *stores, i)});
    if (speeds[drive].ok()) continue;
    spdlog::warn("the speed of {} is not measured, so it counts as the slowest: {}",
                 stores->directories()[i].path(), std::string(speeds[drive].status().message()));
  }
  stores->StripeFromNowOn(StripesBySpeed(directories), std::move(measured));
}

absl::StatusOr<std::unique_ptr<Disk>> OpenEngine(const DiskOptions& options,
                                                 std::shared_ptr<StoreTable> stores) {
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

}  // namespace

absl::StatusOr<std::unique_ptr<Disk>> OpenDisk(const DiskOptions& options) {
  if (options.directories.empty()) {
    return absl::InvalidArgumentError("a disk needs at least one directory");
  }
  if (options.directories.size() > kMostStripesPerCycle) {
    return absl::InvalidArgumentError(absl::StrCat("a disk has at most ", kMostStripesPerCycle,
                                                   " directories; here are ",
                                                   options.directories.size()));
  }
  MEMTIDE_ASSIGN_OR_RETURN(std::shared_ptr<StoreTable> stores,
                           StoreTable::Open(options.directories));
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<Disk> disk, OpenEngine(options, stores));
  if (stores->drive_count() > 1) StripeBySpeed(options, disk.get(), stores.get());
  return disk;
}

}  // namespace memtide

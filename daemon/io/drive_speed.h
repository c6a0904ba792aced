// MeasureDrives: how fast each drive of a disk moves stripes, by a short write and read of a
// temporary store, which has no name, through the disk itself.
#ifndef MEMTIDE_DAEMON_IO_DRIVE_SPEED_H_
#define MEMTIDE_DAEMON_IO_DRIVE_SPEED_H_

#include <vector>

#include "absl/status/statusor.h"
#include "daemon/io/disk.h"
#include "daemon/io/store_table.h"

namespace memtide {

// By drive, in bytes per second: as many bytes are written as read, since what a store is given it
// usually returns. All drives are measured at once, as they will be used. Takes 0.8 s, or as long
// as a slower drive needs for two stripes. FAILED_PRECONDITION if a drive has no direct I/O: its
// speed would be that of the page cache. Otherwise the errors of MakeStore and of transfers.
// REQUIRES: the disk has these stores, none of them yet.
std::vector<absl::StatusOr<double>> MeasureDrives(Disk* disk, StoreTable* stores);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_DRIVE_SPEED_H_

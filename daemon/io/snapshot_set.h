// The set of SSD directories over which the snapshots of durable jobs are saved.
//
// Each of them has a file ".memtide-set": a number that the set was given at random, the number of
// the directory in it, and the paths of all. So a daemon that has other directories, or has them in
// another order, or started before a drive was mounted, knows that what it sees of these jobs is
// not all. Directories without files of durable jobs may become members of any set.
//
// Functions without state. The directories are claimed by this process (StoreDirectory).
#ifndef MEMTIDE_DAEMON_IO_SNAPSHOT_SET_H_
#define MEMTIDE_DAEMON_IO_SNAPSHOT_SET_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace memtide {

// Prefixes of the names of durable jobs' files.
inline constexpr char kSnapshotPrefix[] = ".memtide-snapshot-";
inline constexpr char kStorePrefix[] = ".memtide-store-";

// OK: no durable job has files in any of the directories, or they are a set, in its order.
// INVALID_ARGUMENT: else; the message has the flags that are right, and the command that gives the
// jobs up. UNAVAILABLE: the same, where the directories that are missing are as before their drives
// are mounted. Other errors are those of reading.
absl::Status CheckSet(const std::vector<std::string>& directories);

// The same, and without an error the directories are a set, on stable storage.
absl::Status MakeSet(const std::vector<std::string>& directories);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_SNAPSHOT_SET_H_

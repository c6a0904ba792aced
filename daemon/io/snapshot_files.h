// Snapshot files: what durable jobs have on stable storage, in the SSD directories.
//
// A snapshot is one file in the first directory, ".memtide-snapshot-<job>". The files of the stores
// that it names get names, too, when it is first saved: ".memtide-store-<store>" in each directory.
// So both are there after a reboot. A snapshot is replaced as a whole: a crash or a power cut
// leaves the old one or the new one. The directories are a set (snapshot_set.h) from the first save
// on.
//
// Functions without state. But for LoadSnapshotFiles, the directories are claimed by this process
// (StoreDirectory). They block for as long as the drive takes.
#ifndef MEMTIDE_DAEMON_IO_SNAPSHOT_FILES_H_
#define MEMTIDE_DAEMON_IO_SNAPSHOT_FILES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "daemon/io/owned_fd.h"

namespace memtide {

// Puts what was written to the files of the stores, by directory, on stable storage, and then
// `text`, as the snapshot of the job. FAILED_PRECONDITION: the file system cannot name a file that
// was made without a name, or another file has that name. The errors of MakeSet.
// RESOURCE_EXHAUSTED: there is no room for the snapshot. After these and other errors the last
// snapshot is there; after UNKNOWN, it or the new one.
absl::Status SaveSnapshotFile(const std::vector<std::string>& directories, JobId job,
                              const std::map<StoreId, std::vector<int>>& files,
                              absl::string_view text);

// Removes the snapshot, if there is one, and then the names of the stores.
absl::Status RemoveSnapshotFile(const std::vector<std::string>& directories, JobId job,
                                const std::vector<StoreId>& stores);

struct SnapshotFile {
  JobId job;
  std::string path;
  absl::StatusOr<std::string> text;
};
// All snapshots. NOT_FOUND: the first directory does not exist.
absl::StatusOr<std::vector<SnapshotFile>> LoadSnapshotFiles(
    const std::vector<std::string>& directories);
// The numbers of stores that have names in any of the directories.
absl::StatusOr<std::set<StoreId>> NamedStores(const std::vector<std::string>& directories);
// Removes what a crash has left: the names of all other stores, which it returns, and snapshots
// that are not whole. The errors of CheckSet: what no snapshot here names may be named elsewhere,
// and nothing is removed.
absl::StatusOr<std::set<StoreId>> RemoveLeftSnapshotFiles(
    const std::vector<std::string>& directories, const std::set<StoreId>& saved);

// The files of a store, by directory. DATA_LOSS: one is missing.
absl::StatusOr<std::vector<OwnedFd>> OpenNamedStore(const std::vector<std::string>& directories,
                                                    const std::vector<bool>& direct, StoreId store);
// The blocks of a store's files, by the device number of their file system.
std::map<uint64_t, Bytes> BlocksOfNamedStore(const std::vector<std::string>& directories,
                                             StoreId store);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_SNAPSHOT_FILES_H_

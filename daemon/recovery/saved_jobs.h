// SavedJobs: the durable jobs whose snapshots are in the SSD directories
// (docs/formats/snapshot.md).
//
// Functions without state; thread-compatible. They log nothing.
#ifndef MEMTIDE_DAEMON_RECOVERY_SAVED_JOBS_H_
#define MEMTIDE_DAEMON_RECOVERY_SAVED_JOBS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "daemon/engine/interface/record.h"

namespace memtide {

// The text of a snapshot file, and back. FAILED_PRECONDITION: it has another version. DATA_LOSS: it
// is damaged, or says what no daemon writes.
std::string EncodeSnapshot(const Snapshot& snapshot);
absl::StatusOr<Snapshot> DecodeSnapshot(absl::string_view text);

struct SavedJob {
  Snapshot snapshot;
  // The blocks of its stores, by the device number of the file system.
  std::map<uint64_t, Bytes> blocks;
};

struct SavedJobs {
  std::vector<SavedJob> jobs;
  // Why others cannot be read. They stay as they are.
  std::vector<absl::Status> unreadable;
  // The largest numbers of jobs and stores that files have, readable or not: no new one gets them.
  uint64_t last_job = 0;
  uint32_t last_store = 0;
};

// Errors are those of reading the directories. The jobs may change until these are claimed.
absl::StatusOr<SavedJobs> LoadSavedJobs(const std::vector<std::string>& ssd_dirs);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_RECOVERY_SAVED_JOBS_H_

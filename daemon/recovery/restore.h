// Restores the jobs of an earlier daemon from its journal and the memory that the journal names.
#ifndef MEMTIDE_DAEMON_RECOVERY_RESTORE_H_
#define MEMTIDE_DAEMON_RECOVERY_RESTORE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/engine/interface/events.h"
#include "daemon/io/disk.h"
#include "daemon/io/fd_store.h"
#include "daemon/mover/mover.h"
#include "daemon/recovery/journal.h"
#include "daemon/recovery/persisted_state.h"

namespace memtide {

// Returns the journal that the last daemon left. If there is none, or it cannot be read (which is
// logged), makes a new one and stores it with the service manager. REQUIRES: it has no other
// version, whose jobs would be lost.
absl::StatusOr<std::unique_ptr<Journal>> OpenJournal(PersistedState* persisted);

// Passes the memory of the journal's jobs to the mover and returns the event that tells the engine
// of them. A job with missing memory is dropped, which is logged. Regions and store files of no job
// are removed from the store. REQUIRES: the mover has started no effect.
Restore RestoreJobs(StoredFds stored, Journal* journal, Mover* mover);

// Adds the saved jobs to what is to be restored. Passes the stores of those to the mover that no
// record names, and keeps them in the service manager's store, if there is one. A job with a
// missing store, or whose snapshot cannot be read, is left as it is, which is logged. Removes what
// a crash has left on the disk, which is logged, unless a snapshot cannot be read. REQUIRES: the
// jobs were read after the disk was opened, and the mover has started no effect.
void RestoreSavedJobs(const SavedJobs& saved, Disk* disk, Mover* mover, Restore* restore);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_RECOVERY_RESTORE_H_

// PersistedState: what the last daemon left in the service manager's descriptor store, before any
// of it is used: the memory of jobs, and the journal if it can be read. Thread-compatible; the
// functions start no thread and log nothing.
#ifndef MEMTIDE_DAEMON_RECOVERY_PERSISTED_STATE_H_
#define MEMTIDE_DAEMON_RECOVERY_PERSISTED_STATE_H_

#include <memory>

#include "absl/status/status.h"
#include "daemon/engine/interface/events.h"
#include "daemon/io/fd_store.h"
#include "daemon/recovery/journal.h"
#include "daemon/recovery/persisted_memory.h"
#include "daemon/recovery/saved_jobs.h"

namespace memtide {

inline constexpr char kJournalName[] = "journal";

struct PersistedState {
  StoredFds memory;  // Regions and store files.
  std::unique_ptr<Journal> journal;
  // Why there is no journal, where there is none. NOT_FOUND: the last daemon left none.
  // FAILED_PRECONDITION: it is of another version, and this daemon must not touch what it names.
  absl::Status unreadable;
  // For Measure(), to be loaded when the SSD directories are known. They are not claimed then, so
  // that nothing else may depend on it.
  SavedJobs saved;
};

// To be called once in the process, before it opens files. Empty without a descriptor store.
PersistedState TakePersistedState();

// The memory that the descriptors and the stores of saved jobs hold, and the pools that these jobs
// and those of the journal need.
PersistedMemory Measure(const PersistedState& persisted);

// The part of Measure() that sets the least pools in which an engine can restore these jobs. For
// tests.
void SetLeastPools(const Restore& restore, PersistedMemory* measured);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_RECOVERY_PERSISTED_STATE_H_

// Inheritance: what the daemon before left with the service manager, before any of it is used: its
// descriptors, and its journal where that can be read. Thread-compatible; no thread, and no log.
#ifndef MEMTIDE_DAEMON_RECOVERY_INHERITANCE_H_
#define MEMTIDE_DAEMON_RECOVERY_INHERITANCE_H_

#include <memory>

#include "absl/status/status.h"
#include "daemon/engine/interface/events.h"
#include "daemon/io/fd_store.h"
#include "daemon/recovery/journal.h"
#include "daemon/recovery/kept_memory.h"

namespace memtide {

inline constexpr char kJournalName[] = "journal";

struct Inheritance {
  StoredFds memory;  // Regions and store files.
  std::unique_ptr<Journal> journal;
  // Why there is no journal, where there is none. NOT_FOUND: none was left.
  absl::Status unreadable;
};

// To be called once in the process, before it opens files. Empty where nothing is kept.
Inheritance TakeInheritance();

// What the descriptors hold, and what the jobs of the journal need.
KeptMemory Measure(const Inheritance& left);

// The parts of that, for tests: the least pools in which an engine can restore `left`.
void SetLeastPools(const Restore& left, KeptMemory* kept);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_RECOVERY_INHERITANCE_H_

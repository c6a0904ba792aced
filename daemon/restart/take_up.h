// Taking up what the daemon before left: its journal, and the memory that this names.
#ifndef MEMTIDE_DAEMON_RESTART_TAKE_UP_H_
#define MEMTIDE_DAEMON_RESTART_TAKE_UP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/engine/events.h"
#include "daemon/io/kept_descriptors.h"
#include "daemon/mover/mover.h"
#include "daemon/restart/journal.h"

namespace memtide {

// The journal among the kept descriptors; or, where there is none that can be read (which is
// logged), a new one, given to the service manager.
absl::StatusOr<std::unique_ptr<Journal>> OpenJournal(KeptDescriptors* kept);

// Gives the memory of the journal's jobs to the mover and returns what the engine is to know of
// them. Jobs whose memory is not all there are given up, which is logged. Of the kept descriptors,
// what no job has is forgotten. REQUIRES: the mover has done nothing yet.
Restore TakeUp(KeptDescriptors kept, Journal* journal, Mover* mover);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_RESTART_TAKE_UP_H_

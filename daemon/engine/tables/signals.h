// Signals: events inside the engine, by value. A part of the engine that notices one adds it to the
// WorkList; Engine hands it on to the parts that subscribe, when the present piece of work is done.
// Engine-internal.
//
// A signal has ids and no pointers, as its chunk or job may be gone when it is handed on.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_SIGNALS_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_SIGNALS_H_

#include <variant>

#include "absl/status/status.h"
#include "daemon/engine/interface/types.h"

namespace memtide {

// A job has got the first memory at each of its tiers, or cannot get it.
struct JobMade {
  JobId job;
};
// Jobs that could not be joined may be now.
struct RegionsReplaced {};
// A check has found that sessions of the job write chunks that they have leased for reading.
struct WrittenUnseen {
  JobId job;
  absl::Status why;
};

// The chunk was freed while a snapshot of its job is being saved.
struct ChunkFreed {
  JobId job;
  ChunkIndex chunk;
};
// Writes of the job to a slower tier fail again and again.
struct WritesFail {
  JobId job;
  absl::Status why;
};
// Commits of the job that wait for other ranks may be carried out now.
struct CommitsPossible {
  JobId job;
};

using Signal =
    std::variant<JobMade, RegionsReplaced, WrittenUnseen, ChunkFreed, WritesFail, CommitsPossible>;

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_SIGNALS_H_

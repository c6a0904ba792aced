// Signals: events inside the engine, by value. A class that notices one adds it to the WorkList;
// Dispatcher hands it on to the class that handles it, when the present piece of work is done.
// Engine-internal.
//
// A signal names jobs, sessions and chunks by ids, as they may be gone when it is handed on: then
// its handler does nothing for them. The id of a chunk is that of its entry (ChunkTable::IdOf),
// which a chunk has before any session names it, too.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_SIGNALS_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_SIGNALS_H_

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "daemon/engine/interface/events.h"
#include "daemon/engine/interface/types.h"
#include "daemon/engine/tables/pending_calls.h"

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

// Allocations of the job may have their turn: it has got memory, or a chunk has left some.
struct AllocationsPossible {
  JobId job;
};
// The job gets no memory for the allocations that wait for it.
struct NoMemoryForChunks {
  JobId job;
  Tier home = Tier::kSsd;  // The chunks have it.
  absl::Status why;
};
// A tier of the job is smaller than it was when waiting calls were accepted, for good or until a
// Tick.
struct TierShrunk {
  JobId job;
  Tier tier = Tier::kDevice;
  absl::Status why;
};
// The chunk cannot reach the tier of the calls that wait for it. `is_lost`: nor can other calls
// read it any more.
struct PromotionFailed {
  ChunkId chunk;
  absl::Status why;
  bool is_lost = false;
};
// The chunk cannot leave the tier from which calls evict it.
struct EvictionFailed {
  ChunkId chunk;
  absl::Status why;
};

// Leases of these chunks take room that uses which are predicted sooner want.
struct LeasesInTheWay {
  std::vector<ChunkId> chunks;
};

// A piece of the chunk on SSD was compared with its sums.
struct ScrubEnded {
  ChunkId chunk;
  Version version;
  Bytes verified;
  absl::Status status;
};

// The chunk was freed while a snapshot of its job is being saved, which lists it by its index.
struct ChunkFreed {
  JobId job;
  ChunkId chunk;
};
// Writes of the job to a slower tier fail again and again.
struct WritesFail {
  JobId job;
  absl::Status why;
};
// A chunk that a snapshot of the job needs cannot be read.
struct SnapshotFails {
  JobId job;
  absl::Status why;
};
// Commits of the job that wait for other ranks may be carried out now.
struct CommitsPossible {
  JobId job;
};

// Nothing uses a chunk any more whose offers are repeated.
struct ChunkUnpinned {
  ChunkId chunk;
};
// The session has leased the chunk for writing. `was_common`: it has left a common content for
// that.
struct ContentWritten {
  SessionId session;
  ChunkId chunk;
  bool was_common = false;
};
// A content that the job holds in common for others has ended.
struct ContentEnded {
  JobId job;
};
// The job holds contents in common, and got no memory for more of them.
struct NoMemoryForContents {
  JobId job;
};
// A step part has failed before it ran.
struct PartFailed {
  JobId job;
  SessionId owner;
  PartPurpose purpose;
};
// Calls that have waited for a copy, or for the part of another rank, and are made again.
struct FetchAgain {
  FetchCall call;
};
struct StepAgain {
  StepCall call;
};

using Signal = std::variant<JobMade, RegionsReplaced, WrittenUnseen, AllocationsPossible,
                            NoMemoryForChunks, TierShrunk, PromotionFailed, EvictionFailed,
                            LeasesInTheWay, ScrubEnded, ChunkFreed, WritesFail, SnapshotFails,
                            CommitsPossible, ChunkUnpinned, ContentWritten, ContentEnded,
                            NoMemoryForContents, PartFailed, FetchAgain, StepAgain>;

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_SIGNALS_H_

// RecordLog: which chunks and jobs have changed since the last record was made. Engine-internal.
//
// The engine marks each chunk and job of a persistent job whose record an event changes, and makes
// one Record of all of them before the other effects of the event leave it (records/record.cc). The
// log knows numbers only, never the contents of a record.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_RECORD_LOG_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_RECORD_LOG_H_

#include <set>
#include <vector>

#include "daemon/engine/interface/types.h"
#include "daemon/engine/tables/chunk_queue.h"

namespace memtide {

class RecordLog {
 public:
  struct Changes {
    std::vector<ChunkIndex> chunks;  // In the order of their first marks.
    std::set<JobId> jobs;
  };

  bool empty() const { return chunks_.empty() && jobs_.empty(); }
  // The record of the chunk, or of the job, has changed. Marking it again changes nothing.
  // REQUIRES: index != kNoChunk.
  void Mark(ChunkIndex index) { chunks_.Add(index); }
  void Mark(JobId job) { jobs_.insert(job); }
  // Everything that was marked since the last Take(). The log is empty afterwards.
  Changes Take();

  void CheckInvariants() const { chunks_.CheckInvariants(); }

 private:
  ChunkQueue chunks_;
  std::set<JobId> jobs_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_RECORD_LOG_H_

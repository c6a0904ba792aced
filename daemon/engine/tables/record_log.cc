#include "daemon/engine/tables/record_log.h"

namespace memtide {

RecordLog::Changes RecordLog::Take() {
  Changes changes;
  changes.jobs.swap(jobs_);
  // ChunkQueue forgets each chunk that is taken, so that the next event may mark it again.
  while (!chunks_.empty()) changes.chunks.push_back(chunks_.Take());
  return changes;
}

}  // namespace memtide

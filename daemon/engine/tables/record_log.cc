#include "daemon/engine/tables/record_log.h"

namespace memtide {

RecordLog::Changes RecordLog::Take() {
  Changes changes;
  changes.jobs.swap(jobs_);
  while (!chunks_.empty()) changes.chunks.push_back(chunks_.Take());
  return changes;
}

}  // namespace memtide

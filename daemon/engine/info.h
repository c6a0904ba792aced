// Listings show these of a chunk and of a job. Engine-internal.
#ifndef MEMTIDE_DAEMON_ENGINE_INFO_H_
#define MEMTIDE_DAEMON_ENGINE_INFO_H_

#include "daemon/engine/core.h"

namespace memtide {

ChunkInfo InfoOf(const Core& core, ChunkIndex index);
JobInfo InfoOf(const Core& core, const Job& job);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_INFO_H_

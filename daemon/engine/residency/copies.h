// Copies: where the content of a chunk is, and when it is used next. Engine-internal.
//
// Pure functions.
#ifndef MEMTIDE_DAEMON_ENGINE_RESIDENCY_COPIES_H_
#define MEMTIDE_DAEMON_ENGINE_RESIDENCY_COPIES_H_

#include <cstdint>
#include <string>

#include "absl/types/optional.h"
#include "daemon/engine/job.h"
#include "daemon/engine/tables/chunk_table.h"

namespace memtide {

// REQUIRES: there is memory for a copy of the chunk at the tier.
MemoryPlace PlaceOf(const Chunk& chunk, Tier tier);
// Whether the content would be lost without the copy there, or would be when the daemon ends.
bool IsOnlyCopy(const Chunk& chunk, Tier tier);
// Whether a step has created the chunk's next content in its shadow chunk, so that a commit will
// replace the present content, and no use of it is predicted before.
bool IsSuperseded(const ChunkTable& chunks, const Chunk& chunk);
// The predicted next use of the content. The content of a shadow chunk belongs to its counterpart
// from the end of the iteration on.
VirtualTime NextUseOfContent(const ChunkTable& chunks, const Chunk& chunk);
// The same in moments; nullopt: no use is predicted.
absl::optional<uint32_t> MomentsUntilUse(const ChunkTable& chunks, const Chunk& chunk);
// The names of the last moments that used the chunk, for an error.
std::string LastMomentsOf(const Chunk& chunk);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_RESIDENCY_COPIES_H_

// Freed chunks: what is pending for them ends. Their slots stay as long as a transfer or a step
// uses them.
#include <vector>

#include "daemon/engine/calls/calls.h"
#include "daemon/engine/errors.h"

namespace memtide {

void Calls::FreeChunk(ChunkIndex index) {
  const absl::Status freed = FreedChunkError(core_.chunks, index);
  FailNaming(index, /*only_readers=*/false, freed);
  Chunk& chunk = core_.chunks[index];
  for (Waiter* const waiter : std::vector<Waiter*>(chunk.uses().waiters)) Fail(*waiter, freed);
  FinishEvicts(index, freed);
  Job& job = *chunk.job;
  core_.MarkDirty(index);
  while (!chunk.uses().pins.empty()) UnpinChunk(index, chunk.uses().pins.size() - 1);
  job.parts.ForgetWriter(index);
  job.names.Forget(index);
  if (job.snapshots.saving.has_value()) core_.work.Send(ChunkFreed{job.id, core_.IdOf(index)});
  if (residency_.EndChunk(index)) AllocateWaiting(job);
}

void Calls::FreeTransient(Job& job, absl::optional<SessionId> owner) {
  for (const ChunkIndex index : job.members.chunks()) {
    const Chunk& chunk = core_.chunks[index];
    const bool ends = !owner.has_value() || chunk.owner == *owner;
    if (chunk.live() && chunk.transient && ends) FreeChunk(index);
  }
}

}  // namespace memtide

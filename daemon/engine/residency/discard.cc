// Discard: content that ends while its chunk stays.
#include "base/check.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

void Residency::Discard(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  MEMTIDE_CHECK(!chunk.pinned());
  CancelMovements(index);
  chunk.blank = copies_[index].discarded = false;
  BeginVersion(index, TierSet());
  victims_.Rank(index);
  if (chunk.is_shadow) victims_.Rank(chunk.counterpart);
  core_.ScheduleChunk(index);
}

void Residency::DiscardUndefined(ChunkIndex index) {
  Discard(index);
  copies_[index].discarded = true;
  core_.chunks[index].prefetched_to.Clear();
}

}  // namespace memtide

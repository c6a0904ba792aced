// Shadows: pairs of a chunk and its shadow chunk, and the exchange of what two chunks hold.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

void Residency::LinkShadow(ChunkIndex index, ChunkIndex shadow) {
  core_.chunks[index].counterpart = shadow;
  core_.chunks[shadow].counterpart = index;
  core_.chunks[shadow].is_shadow = true;
}

// The predicted next use of the counterpart's content depended on the pair.
void Residency::UnlinkShadow(ChunkIndex index) {
  const ChunkIndex counterpart = std::exchange(core_.chunks[index].counterpart, kNoChunk);
  core_.chunks[index].is_shadow = false;
  if (counterpart == kNoChunk) return;
  core_.chunks[counterpart].counterpart = kNoChunk;
  core_.chunks[counterpart].is_shadow = false;
  victims_.Rank(counterpart);
}

void Residency::CancelMovements(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  StopPrefetch(chunk);
  CancelEviction(chunk);
  for (const Tier tier : kMemoryTiers) StopWaitingForSlot(index, tier);
  StopWaitingForWrite(index);
  chunk.write_back_from.reset();
  chunk.wrote_back = false;
  chunk.failures = 0;
}

void Residency::SwapContents(ChunkIndex index_a, ChunkIndex index_b) {
  Chunk& a = core_.chunks[index_a];
  Chunk& b = core_.chunks[index_b];
  MEMTIDE_CHECK(!a.pinned() && !b.pinned());
  CancelMovements(index_a);
  CancelMovements(index_b);
  // Neither chunk ever had this version. A speculative step part that has read one of them
  // therefore does not count (decision 13).
  const Version fresh(std::max(a.version.value(), b.version.value()) + 1);
  const bool a_is_shared = a.holds_shared_result(), b_is_shared = b.holds_shared_result();
  for (const ChunkIndex index : {index_a, index_b}) {
    Chunk* const chunk = &core_.chunks[index];
    // A transfer of the current content stays valid under the new version. A transfer of an older
    // version does not.
    if (chunk->copies().flight != nullptr) {
      Flight& flight = *copies_[index].flight;
      flight.version = flight.version == chunk->version ? fresh : Version(0);
    }
    chunk->version = fresh;
  }
  std::swap(copies_[index_a], copies_[index_b]);
  a.shared_result = b_is_shared ? fresh : Version();
  b.shared_result = a_is_shared ? fresh : Version();
  for (const ChunkIndex index : {index_a, index_b}) {
    const Flight* const flight = core_.chunks[index].copies().flight.get();
    // The transfer belongs to its slots, which the other chunk has now.
    if (flight != nullptr) core_.transfers[flight->transfer] = index;
    NoteChange(index);
  }
}

}  // namespace memtide

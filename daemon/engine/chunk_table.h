// ChunkTable: the chunks of all jobs, by index. Engine-internal.
//
// An entry is claimed for a new chunk and released when nothing uses the chunk any more. Each claim
// grows the generation of the entry, so that an id which outlives its chunk never names another.
// The table owns its chunks and knows which entries are empty; the contents of a chunk are the
// engine's.
//
// Ownership: a Chunk& stays valid until the next Claim() or Restore().
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_CHUNK_TABLE_H_
#define MEMTIDE_DAEMON_ENGINE_CHUNK_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/engine/chunk.h"
#include "daemon/engine/types.h"

namespace memtide {

class ChunkTable {
 public:
  // REQUIRES: index.value() < size().
  Chunk& operator[](ChunkIndex index) { return chunks_[index.value()]; }
  const Chunk& operator[](ChunkIndex index) const { return chunks_[index.value()]; }
  // The number of entries, empty ones included.
  uint32_t size() const { return static_cast<uint32_t>(chunks_.size()); }
  std::vector<Chunk>::const_iterator begin() const { return chunks_.begin(); }
  std::vector<Chunk>::const_iterator end() const { return chunks_.end(); }

  ChunkId IdOf(ChunkIndex index) const {
    return ChunkId(uint64_t{(*this)[index].generation} << 32 | index.value());
  }
  // The live chunk with this id; nullopt: there is none.
  absl::optional<ChunkIndex> Find(ChunkId id) const;

  // An empty entry with a new generation: the one that was released last, or a new one. The caller
  // gives it a job before the next call.
  ChunkIndex Claim();
  // Resets the entry, which frees its slots. REQUIRES: it has a job, and no pin, transfer or step.
  void Release(ChunkIndex index);

  // Makes entries that are empty but not to be claimed until ReleaseEmpty().
  // REQUIRES: size() == 0.
  void Restore(uint32_t entries, uint32_t generation);
  // The restored entries that no job has may be claimed, the lowest first.
  void ReleaseEmpty();
  void Clear();

  void CheckInvariants() const;

 private:
  std::vector<Chunk> chunks_;
  std::vector<ChunkIndex> free_;  // The empty entries. The last one is claimed next.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_CHUNK_TABLE_H_

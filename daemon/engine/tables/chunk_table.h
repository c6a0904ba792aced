// ChunkTable: the chunks of all jobs, by index. Engine-internal.
//
// An entry is taken for a new chunk, which is live until it is freed, and released when nothing
// uses the chunk any more. Each new chunk grows the generation of the entry, so that an id which
// outlives its chunk never names another. The table owns its chunks and knows which entries are
// empty and which are live; the contents of a chunk are the engine's. Anybody reads where a content
// is and which calls use it, and the owners of WritableCopies and WritableUses change it.
//
// Ownership: a Chunk& stays valid until the next Make() or Restore().
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_CHUNK_TABLE_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_CHUNK_TABLE_H_

#include <cstdint>
#include <set>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "base/check.h"
#include "daemon/engine/interface/types.h"
#include "daemon/engine/tables/chunk.h"

namespace memtide {

class ChunkTable;

// The chunks whose host memory a running step reads and writes. As long as it exists, none of their
// entries is released. The table must outlive it.
class HeldChunks {
 public:
  HeldChunks(HeldChunks&&) noexcept = default;
  ~HeldChunks() { End(); }

  // Holds them no longer, and returns them.
  std::vector<ChunkIndex> End();

 private:
  friend class ChunkTable;
  HeldChunks(ChunkTable* table, std::vector<ChunkIndex> indices);

  ChunkTable* table_;
  std::vector<ChunkIndex> indices_;  // Empty if they were moved to another object.
};

class ChunkTable {
 public:
  ChunkTable() = default;
  ChunkTable(const ChunkTable&) = delete;
  ChunkTable& operator=(const ChunkTable&) = delete;

  // Permits its owner to change one part of all chunks. REQUIRES: the table has no other owner of
  // that part; index.value() < size().
  template <typename Part, Part Chunk::*kPart>
  class Writable {
   public:
    explicit Writable(ChunkTable& table) : table_(table) {
      MEMTIDE_CHECK(table.owned_.insert(typeid(Part)).second) << "two owners";
    }
    Writable(const Writable&) = delete;
    Part& operator[](ChunkIndex index) const { return table_[index].*kPart; }

   private:
    ChunkTable& table_;
  };
  using WritableCopies = Writable<Copies, &Chunk::copies_>;
  using WritableUses = Writable<Uses, &Chunk::uses_>;

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

  // A live chunk of the job in an entry with a new generation: the entry that was released last, or
  // a new one. REQUIRES: job != nullptr.
  ChunkIndex Make(Job* job);
  // The chunk is not live any more, and no id names it. REQUIRES: it is live.
  void Free(ChunkIndex index);
  // Resets the entry, which frees its slots. REQUIRES: its chunk is freed, and has no pin, transfer
  // or step.
  void Release(ChunkIndex index);
  // The number of the chunks that need a slot of their job at the tier.
  uint32_t CountRoom(const std::vector<ChunkIndex>& indices, Tier tier) const;
  // The number of live chunks.
  uint32_t live() const { return live_; }

  HeldChunks Hold(std::vector<ChunkIndex> indices) { return {this, std::move(indices)}; }

  // Makes entries that are empty but not to be taken until ReleaseEmpty().
  // REQUIRES: size() == 0.
  void Restore(uint32_t entries, uint32_t generation);
  // The chunk of the job that has this id, live again.
  // REQUIRES: Restore() made its entry, and no other chunk has it.
  ChunkIndex MakeRestored(ChunkId id, Job* job);
  // The restored entries that no job has may be taken, the lowest first.
  void ReleaseEmpty();

  // Checks the entry by itself; its job knows more of it. REQUIRES: it is not empty.
  void CheckChunk(ChunkIndex index) const;
  // Checks which entries are empty and live.
  void CheckInvariants() const;

 private:
  std::vector<Chunk> chunks_;
  std::vector<ChunkIndex> free_;  // The empty entries. The last one is taken next.
  uint32_t live_ = 0;
  std::set<std::type_index> owned_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_CHUNK_TABLE_H_

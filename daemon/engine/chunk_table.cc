#include "daemon/engine/chunk_table.h"

#include <algorithm>

#include "base/check.h"

namespace memtide {

absl::optional<ChunkIndex> ChunkTable::Find(ChunkId id) const {
  const ChunkIndex index = IndexOf(id);
  if (index.value() >= chunks_.size()) return absl::nullopt;
  const Chunk& chunk = (*this)[index];
  if (!chunk.live() || chunk.generation != GenerationOf(id)) return absl::nullopt;
  return index;
}

ChunkIndex ChunkTable::Claim() {
  if (free_.empty()) {
    free_.push_back(ChunkIndex(size()));
    chunks_.emplace_back();
  }
  const ChunkIndex index = free_.back();
  free_.pop_back();
  ++(*this)[index].generation;
  return index;
}

void ChunkTable::Release(ChunkIndex index) {
  Chunk& chunk = (*this)[index];
  MEMTIDE_CHECK(chunk.job != nullptr) << "chunk " << index << " is released twice";
  MEMTIDE_CHECK(!chunk.pinned() && !chunk.copies.flight.has_value() && chunk.steps == 0)
      << "chunk " << index << " is in use";
  const uint32_t generation = chunk.generation;
  chunk = Chunk();
  chunk.generation = generation;
  free_.push_back(index);
}

void ChunkTable::Restore(uint32_t entries, uint32_t generation) {
  MEMTIDE_CHECK(chunks_.empty()) << "only before anything else";
  chunks_.resize(entries);
  for (Chunk& chunk : chunks_) chunk.generation = generation;
}

void ChunkTable::ReleaseEmpty() {
  MEMTIDE_CHECK(free_.empty());
  for (uint32_t i = size(); i > 0; --i) {
    if (chunks_[i - 1].job == nullptr) free_.push_back(ChunkIndex(i - 1));
  }
}

void ChunkTable::Clear() {
  chunks_.clear();
  free_.clear();
}

void ChunkTable::CheckInvariants() const {
  const auto is_empty = [](const Chunk& chunk) { return chunk.job == nullptr; };
  const auto empty = std::count_if(chunks_.begin(), chunks_.end(), is_empty);
  MEMTIDE_CHECK(static_cast<size_t>(empty) == free_.size()) << "an empty entry is lost";
  for (const ChunkIndex index : free_) {
    const Chunk& chunk = (*this)[index];
    MEMTIDE_CHECK(is_empty(chunk) && chunk.copies.valid == 0 && !chunk.pinned() &&
                  !chunk.copies.flight.has_value());
  }
}

}  // namespace memtide

#include "daemon/engine/tables/chunk_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace memtide {

absl::optional<ChunkIndex> ChunkTable::Find(ChunkId id) const {
  const ChunkIndex index = IndexOf(id);
  if (index.value() >= chunks_.size()) return absl::nullopt;
  const Chunk& chunk = (*this)[index];
  // The id may be that of an earlier chunk in the entry.
  if (!chunk.live() || chunk.generation != GenerationOf(id)) return absl::nullopt;
  return index;
}

HeldChunks::HeldChunks(ChunkTable* table, std::vector<ChunkIndex> indices)
    : table_(table), indices_(std::move(indices)) {
  for (const ChunkIndex index : indices_) ++(*table_)[index].steps_;
}

// Runs again in the destructor, where it finds no indices.
std::vector<ChunkIndex> HeldChunks::End() {
  for (const ChunkIndex index : indices_) --(*table_)[index].steps_;
  return std::exchange(indices_, {});
}

uint32_t ChunkTable::CountRoom(const std::vector<ChunkIndex>& indices, Tier tier) const {
  return static_cast<uint32_t>(
      std::count_if(indices.begin(), indices.end(),
                    [this, tier](ChunkIndex index) { return (*this)[index].takes_room_at(tier); }));
}

ChunkIndex ChunkTable::Make(Job* job) {
  MEMTIDE_CHECK(job != nullptr);
  if (free_.empty()) {
    free_.push_back(ChunkIndex(size()));
    chunks_.emplace_back();
  }
  const ChunkIndex index = free_.back();
  free_.pop_back();
  Chunk& chunk = (*this)[index];
  // The new generation makes all earlier ids of the entry invalid.
  ++chunk.generation;
  chunk.job = job;
  ++live_;
  return index;
}

void ChunkTable::Free(ChunkIndex index) {
  MEMTIDE_CHECK((*this)[index].live()) << "chunk " << index << " is freed twice";
  (*this)[index].freed_ = true;
  --live_;
}

void ChunkTable::Release(ChunkIndex index) {
  Chunk& chunk = (*this)[index];
  MEMTIDE_CHECK(chunk.job != nullptr) << "chunk " << index << " is released twice";
  MEMTIDE_CHECK(!chunk.live() && !chunk.pinned() && !chunk.copies().flight && !chunk.in_step() &&
                !chunk.prefetch_to.has_value() && !chunk.evict_from.has_value())
      << "chunk " << index << " is in use";
  // The generation is all that outlives the chunk: Make() grows it.
  const uint32_t generation = chunk.generation;
  chunk = Chunk();
  chunk.generation = generation;
  free_.push_back(index);
}

void ChunkTable::Restore(uint32_t entries, uint32_t generation) {
  MEMTIDE_CHECK(chunks_.empty()) << "only before anything else";
  chunks_.resize(entries);
  // The records do not say which generation an empty entry had. The largest of all is safe for
  // each.
  for (Chunk& chunk : chunks_) chunk.generation = generation;
}

ChunkIndex ChunkTable::MakeRestored(ChunkId id, Job* job) {
  const ChunkIndex index = IndexOf(id);
  Chunk& chunk = (*this)[index];
  MEMTIDE_CHECK(job != nullptr && chunk.job == nullptr && free_.empty())
      << "chunk " << index << " is not restored now";
  chunk.generation = GenerationOf(id);
  chunk.job = job;
  ++live_;
  return index;
}

void ChunkTable::ReleaseEmpty() {
  MEMTIDE_CHECK(free_.empty());
  // Make() takes the last entry of free_, so the lowest index is added last.
  for (uint32_t i = size(); i > 0; --i) {
    if (chunks_[i - 1].job == nullptr) free_.push_back(ChunkIndex(i - 1));
  }
}

void ChunkTable::CheckChunk(ChunkIndex index) const {
  const Chunk& chunk = (*this)[index];
  MEMTIDE_CHECK(chunk.live() || chunk.copies().flight || chunk.in_step())
      << "a freed chunk lingers";
  MEMTIDE_CHECK(!chunk.live() || !chunk.in_step() || chunk.pinned_at(Tier::kHost))
      << "a step runs on memory that may move";
  MEMTIDE_CHECK(!chunk.blank || chunk.uses().overwrite) << "nobody writes a blank chunk";
  MEMTIDE_CHECK(!chunk.is_shadow || chunk.counterpart != kNoChunk);
  if (chunk.counterpart != kNoChunk) {
    const Chunk& counterpart = (*this)[chunk.counterpart];
    MEMTIDE_CHECK(chunk.live() && counterpart.live() && counterpart.job == chunk.job);
    MEMTIDE_CHECK(counterpart.counterpart == index && counterpart.is_shadow != chunk.is_shadow);
  }
  if (chunk.common() != nullptr) {
    MEMTIDE_CHECK(chunk.home() == Tier::kHost && !chunk.slot(Tier::kHost) &&
                  chunk.copies().of_readers);
    // Only the part that makes it writes it.
    const bool is_written =
        std::any_of(chunk.uses().pins.begin(), chunk.uses().pins.end(),
                    [](const Pin& pin) { return pin.granted() && pin.access == Access::kWrite; });
    MEMTIDE_CHECK(!chunk.common()->whole || (!is_written && !chunk.copies().torn));
    MEMTIDE_CHECK(bool(chunk.copies().of_common) == chunk.live());
  }
  for (const Tier tier : kAllTiers) {
    MEMTIDE_CHECK(!chunk.valid_at(tier) || chunk.has_slot(tier)) << "a copy without a slot";
    MEMTIDE_CHECK(tier == Tier::kSsd || !chunk.waits_for.has(tier) || !chunk.has_slot(tier))
        << "waits for what it has";
  }
  for (const Pin& pin : chunk.uses().pins) {
    MEMTIDE_CHECK(pin.granted() || pin.pending > 0);
    MEMTIDE_CHECK(!pin.granted() || chunk.valid_at(chunk.uses().pin_tier))
        << "chunk " << index << " is leased where it has no copy";
    MEMTIDE_CHECK(!pin.granted() || pin.access == Access::kRead ||
                  chunk.copies().valid.is_only(chunk.uses().pin_tier))
        << "a written chunk has stale copies";
  }
}

void ChunkTable::CheckInvariants() const {
  const auto live = std::count_if(chunks_.begin(), chunks_.end(),
                                  [](const Chunk& chunk) { return chunk.live(); });
  MEMTIDE_CHECK(static_cast<uint32_t>(live) == live_);
  const auto is_empty = [](const Chunk& chunk) { return chunk.job == nullptr; };
  const auto empty = std::count_if(chunks_.begin(), chunks_.end(), is_empty);
  MEMTIDE_CHECK(static_cast<size_t>(empty) == free_.size()) << "an empty entry is lost";
  for (const ChunkIndex index : free_) {
    const Chunk& chunk = (*this)[index];
    MEMTIDE_CHECK(is_empty(chunk) && !chunk.has_content() && !chunk.pinned() &&
                  !chunk.copies().flight && !chunk.in_step());
  }
}

}  // namespace memtide

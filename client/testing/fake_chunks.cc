#include "client/testing/fake_chunks.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace memtide::client {

FakeChunks::FakeChunks(Bytes chunk_size, uint32_t slots)
    : chunk_size_(chunk_size), size_(chunk_size * slots), slots_(slots) {
  fd_ = memfd_create("memtide-fake", MFD_CLOEXEC);
  MEMTIDE_CHECK(fd_ >= 0 && ftruncate(fd_, static_cast<off_t>(size_.count())) == 0);
  void* memory = mmap(nullptr, size_.count(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  MEMTIDE_CHECK(memory != MAP_FAILED);
  memory_ = static_cast<char*>(memory);
}

FakeChunks::~FakeChunks() {
  munmap(memory_, size_.count());
  close(fd_);
}

Region FakeChunks::region() const {
  Region region;
  region.size = size_;
  region.memory = Descriptor(fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  return region;
}

ChunkId FakeChunks::Add(InitialContent initial_content) {
  const ChunkId id(next_chunk_++);
  chunks_[id].initial_content = initial_content;
  return id;
}

void FakeChunks::Remove(ChunkId id) {
  Drop(&chunks_.at(id));
  chunks_.erase(id);
}

void FakeChunks::Discard(ChunkId id) {
  Chunk& chunk = chunks_.at(id);
  Drop(&chunk);
  const uint64_t version = chunk.version + 1;
  chunk = Chunk();
  chunk.version = version;
  chunk.initial_content = InitialContent::kUndefined;
}

void FakeChunks::Drop(Chunk* chunk) {
  leases_ -= chunk->leased ? 1 : 0;
  if (!chunk->slot.has_value()) return;
  memset(Slot(*chunk->slot), kScramble, chunk_size_.count());
  slots_[*chunk->slot].reset();
}

bool FakeChunks::MakeResident(const std::vector<ChunkId>& ids) {
  std::vector<Chunk*> wanted;
  for (const ChunkId id : ids) wanted.push_back(&chunks_.at(id));
  bool complete = true;
  // Lease the requested chunks meanwhile, so that none of them is evicted for another.
  std::vector<bool> leased;
  for (Chunk* chunk : wanted) {
    leased.push_back(chunk->leased);
    chunk->leased = true;
  }
  for (size_t i = 0; i < wanted.size() && complete; ++i) {
    if (wanted[i]->slot.has_value()) continue;
    wanted[i]->slot = FindSlot();
    complete = wanted[i]->slot.has_value();
    if (!complete) break;
    slots_[*wanted[i]->slot] = ids[i];
    char* slot = Slot(*wanted[i]->slot);
    if (wanted[i]->buffer.empty()) {
      const bool zeros = wanted[i]->initial_content == InitialContent::kZeros;
      memset(slot, zeros ? 0 : kScramble, chunk_size_.count());
    } else {
      memcpy(slot, wanted[i]->buffer.data(), chunk_size_.count());
    }
  }
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i]->leased = leased[i];
  return complete;
}

absl::optional<uint32_t> FakeChunks::FindSlot() {
  absl::optional<uint32_t> oldest;
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot].has_value()) return slot;
    const Chunk& chunk = chunks_.at(*slots_[slot]);
    if (chunk.leased) continue;
    if (!oldest.has_value() || chunk.released_at < chunks_.at(*slots_[*oldest]).released_at) {
      oldest = slot;
    }
  }
  if (oldest.has_value()) EvictChunk(&chunks_.at(*slots_[*oldest]));
  return oldest;
}

void FakeChunks::EvictChunk(Chunk* chunk) {
  char* slot = Slot(*chunk->slot);
  chunk->buffer.assign(slot, slot + chunk_size_.count());
  memset(slot, kScramble, chunk_size_.count());
  slots_[*chunk->slot].reset();
  chunk->slot.reset();
  ++evictions_;
}

Bytes FakeChunks::Lend(ChunkId id, Access access) {
  Chunk& chunk = chunks_.at(id);
  leases_ += chunk.leased ? 0 : 1;
  chunk.leased = true;
  chunk.version += access == Access::kWrite;
  return chunk_size_ * *chunk.slot;
}

void FakeChunks::EndLease(ChunkId id) {
  Chunk& chunk = chunks_.at(id);
  chunk.leased = false;
  chunk.released_at = ++releases_;
  --leases_;
}

void FakeChunks::Evict(ChunkId id) {
  Chunk& chunk = chunks_.at(id);
  if (chunk.slot.has_value()) EvictChunk(&chunk);
}

void FakeChunks::Move(ChunkId id) {
  Chunk& chunk = chunks_.at(id);
  if (!chunk.slot.has_value()) return;
  const bool leased = std::exchange(chunk.leased, true);  // It is not evicted for itself.
  const uint32_t before = *chunk.slot, now = *FindSlot();
  chunk.leased = leased;
  memcpy(Slot(now), Slot(before), chunk_size_.count());
  memset(Slot(before), kScramble, chunk_size_.count());
  slots_[before].reset();
  slots_[now] = id;
  chunk.slot = now;
}

char* FakeChunks::BytesOf(ChunkId id) {
  Chunk& chunk = chunks_.at(id);
  if (chunk.slot.has_value()) return Slot(*chunk.slot);
  chunk.buffer.resize(chunk_size_.count());
  return chunk.buffer.data();
}

void FakeChunks::Fill(ChunkId id, unsigned char byte) {
  Evict(id);
  chunks_.at(id).buffer.assign(chunk_size_.count(), static_cast<char>(byte));
}

void FakeChunks::Commit(ChunkId id, ChunkId shadow) {
  char* const bytes = BytesOf(id);
  std::swap_ranges(bytes, bytes + chunk_size_.count(), BytesOf(shadow));
  ++chunks_.at(id).version;
}

}  // namespace memtide::client

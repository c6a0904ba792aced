// FakeChunks: the chunks of a FakeDaemonSession, in real shared memory of few slots.
//
// A chunk is in a slot, or evicted to a buffer of its own. If no slot is free, the chunk that was
// released longest ago is evicted. The slot that a chunk leaves is overwritten with kScramble: a
// client that reads a lease after its release sees kScramble instead of the chunk's bytes.
//
// Not thread-safe. Has() aside, a caller names only chunks that it has added and not removed.
#ifndef MEMTIDE_CLIENT_TESTING_FAKE_CHUNKS_H_
#define MEMTIDE_CLIENT_TESTING_FAKE_CHUNKS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/kinds.h"
#include "client/memory/place.h"
#include "client/memory/region.h"

namespace memtide::client {

class FakeChunks {
 public:
  static constexpr unsigned char kScramble = 0xDD;

  FakeChunks(Bytes chunk_size, uint32_t slots);
  FakeChunks(const FakeChunks&) = delete;
  FakeChunks& operator=(const FakeChunks&) = delete;
  ~FakeChunks();

  // All slots. Each call returns another descriptor of the same memory.
  Region region() const;

  ChunkId Add(InitialContent initial_content);
  // Ends the lease on the chunk, too.
  void Remove(ChunkId id);
  // Ends the content of the chunk and the lease on it.
  void Discard(ChunkId id);
  bool Has(ChunkId id) const { return chunks_.count(id) > 0; }
  size_t size() const { return chunks_.size(); }

  // Gives all of the chunks a slot, or returns false. Chunks that got a slot keep it then.
  bool MakeResident(const std::vector<ChunkId>& ids);
  // Leases the chunk, and returns where it is in the region. REQUIRES: it has a slot.
  Bytes Lend(ChunkId id, Access access);
  // REQUIRES: the chunk is leased.
  void EndLease(ChunkId id);
  bool is_leased(ChunkId id) const { return chunks_.at(id).leased; }
  // Does nothing if the chunk has no slot.
  void Evict(ChunkId id);
  // Gives the chunk another slot, if it has one. REQUIRES: not all slots are leased.
  void Move(ChunkId id);

  // The chunk's bytes, until it comes to or leaves a slot.
  char* BytesOf(ChunkId id);
  // Sets all bytes of the chunk to `byte`, in other memory than before: a mapping that outlives its
  // lease sees kScramble.
  void Fill(ChunkId id, unsigned char byte);
  // Exchanges the contents of a chunk and of its shadow chunk.
  void Commit(ChunkId id, ChunkId shadow);
  // Write leases, commits and discards of the chunk so far.
  uint64_t version(ChunkId id) const { return chunks_.at(id).version; }

  uint32_t leases() const { return leases_; }
  uint64_t evictions() const { return evictions_; }

 private:
  struct Chunk {
    absl::optional<uint32_t> slot;
    InitialContent initial_content = InitialContent::kZeros;
    bool leased = false;
    uint64_t version = 0;
    uint64_t released_at = 0;  // A count of releases, for the order of eviction.
    std::vector<char> buffer;  // Its bytes while it has no slot. Empty: never written.
  };

  // Returns a free slot, evicting a chunk if needed. nullopt: all slots are leased.
  absl::optional<uint32_t> FindSlot();
  void EvictChunk(Chunk* chunk);
  // Ends the lease on the chunk, and what its slot holds.
  void Drop(Chunk* chunk);
  char* Slot(uint32_t slot) const { return memory_ + slot * chunk_size_.count(); }

  const Bytes chunk_size_;
  const Bytes size_;
  int fd_ = -1;
  char* memory_ = nullptr;
  std::map<ChunkId, Chunk> chunks_;
  std::vector<absl::optional<ChunkId>> slots_;
  uint64_t next_chunk_ = 1;
  uint64_t releases_ = 0;
  uint32_t leases_ = 0;
  uint64_t evictions_ = 0;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_TESTING_FAKE_CHUNKS_H_

// Identifiers that cross module boundaries, each a type of its own: a region id is not a chunk id.
//
// Value types. `value()` is the only way out; zero means "none" nowhere: use absl::optional.
#ifndef MEMTIDE_BASE_IDS_H_
#define MEMTIDE_BASE_IDS_H_

#include <cstdint>
#include <functional>
#include <ostream>

namespace memtide {

template <typename Tag, typename Integer>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(Integer value) : value_(value) {}
  constexpr Integer value() const { return value_; }

  friend constexpr bool operator==(Id a, Id b) { return a.value_ == b.value_; }
  friend constexpr bool operator!=(Id a, Id b) { return a.value_ != b.value_; }
  friend constexpr bool operator<(Id a, Id b) { return a.value_ < b.value_; }
  friend std::ostream& operator<<(std::ostream& out, Id id) { return out << id.value_; }
  template <typename Hash>
  friend Hash AbslHashValue(Hash hash, Id id) {
    return Hash::combine(std::move(hash), id.value_);
  }

 private:
  Integer value_ = 0;
};

// A chunk: the unit of management. Low 32 bits: place in the engine's table; high 32 bits: the
// generation of that place, so that an id outlives its chunk without ever naming another one.
using ChunkId = Id<struct ChunkTag, uint64_t>;
// One content of a chunk; grows by one with every write lease.
using Version = Id<struct VersionTag, uint64_t>;
// One connection of one training process.
using SessionId = Id<struct SessionTag, uint64_t>;
// The sessions that share chunks (the ranks of one training run).
using JobId = Id<struct JobTag, uint64_t>;
// One piece of shared memory, cut into slots of one job's chunk size.
using RegionId = Id<struct RegionTag, uint32_t>;
// One set of spill files on the SSD pool, cut into slots of one job's chunk size.
using StoreId = Id<struct StoreTag, uint32_t>;
// One transfer between tiers.
using TransferId = Id<struct TransferTag, uint64_t>;
// One part of an optimizer's step.
using StepId = Id<struct StepTag, uint64_t>;
// The engine's name for a call that waits for its reply.
using CallId = Id<struct CallTag, uint64_t>;

}  // namespace memtide

#endif  // MEMTIDE_BASE_IDS_H_

// Identifiers that cross module boundaries, each a type of its own: a RegionId is not a ChunkId.
//
// Value types. value() is the only way to the integer. Zero is an ordinary value: an absent id is
// an absl::optional.
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

// A chunk, the unit of management. The low 32 bits are its index in the engine's table, the high 32
// bits the generation of that entry; so an id that outlives its chunk never names another one.
using ChunkId = Id<struct ChunkTag, uint64_t>;
// A chunk's number within its job, by which policies know it. Members are dense: a freed number is
// used again.
using Member = Id<struct MemberTag, uint32_t>;
// A content of a chunk. Every write lease increments it.
using Version = Id<struct VersionTag, uint64_t>;
// A session: one connection of one training process.
using SessionId = Id<struct SessionTag, uint64_t>;
// A job: the sessions that share chunks, such as the ranks of one training run.
using JobId = Id<struct JobTag, uint64_t>;
// A region: a piece of memory that is lent to sessions, divided into slots of one job's chunk size.
using RegionId = Id<struct RegionTag, uint32_t>;
// A store: a set of spill files in the SSD pool, divided into slots of one job's chunk size.
using StoreId = Id<struct StoreTag, uint32_t>;
// A transfer between tiers.
using TransferId = Id<struct TransferTag, uint64_t>;
// A part of an optimizer step.
using StepId = Id<struct StepTag, uint64_t>;
// A call to the engine that waits for its reply.
using CallId = Id<struct CallTag, uint64_t>;

}  // namespace memtide

#endif  // MEMTIDE_BASE_IDS_H_

// Sequence: a trace, checked and in the planner's own types: what was done to which chunks, moment
// by moment, in whole iterations.
//
// Chunks are numbers below `chunks.size()`. One that the trace does not allocate before it uses it
// exists from the start. What follows the last complete iteration is left out. The time between two
// moments less the stalls that the trace has in it is the first one's compute time.
// Plain values; thread-compatible.
#ifndef MEMTIDE_DAEMON_PLANNER_SEQUENCE_H_
#define MEMTIDE_DAEMON_PLANNER_SEQUENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "daemon/engine/types.h"
#include "memtide/v1/trace.pb.h"

namespace memtide {

struct ChunkEvent {
  enum class Kind : uint8_t { kRead, kWrite, kAllocate, kFree };

  uint32_t chunk = 0;
  Kind kind = Kind::kRead;

  bool IsUse() const { return kind == Kind::kRead || kind == Kind::kWrite; }
};

struct PlayedMoment {
  Phase phase = Phase::kOther;
  std::string name;
  Bytes own_device, own_host;
  Duration compute{0};
  std::vector<ChunkEvent> events;  // In order.
};

struct PlayedChunk {
  ChunkKind kind = ChunkKind::kOther;
  bool from_start = false;  // Exists before the first moment.
};

struct Sequence {
  Bytes chunk_size;
  // Of the job that was traced.
  uint32_t device_slots = 0, host_slots = 0, ssd_slots = 0;
  std::vector<PlayedChunk> chunks;
  std::vector<PlayedMoment> moments;
  std::vector<size_t> iteration_ends;  // Index of the moment after each. Not empty.

  size_t iterations() const { return iteration_ends.size(); }
  size_t IterationBegin(size_t iteration) const {
    return iteration == 0 ? 0 : iteration_ends[iteration - 1];
  }
};

// INVALID_ARGUMENT, naming the moment: a chunk used after it was freed, allocated while it exists,
// a number above what an engine can have, iteration ends out of order, times that cannot be.
// FAILED_PRECONDITION: there is no complete iteration.
absl::StatusOr<Sequence> ToSequence(const v1::Trace& trace);

// The most chunks that exist at once, of those that anything is done to.
uint32_t MostChunks(const Sequence& sequence);

// The sequence, and its iterations from `first` on `times` more. Where the chunks that exist at the
// end are not those that exist when iteration `first` begins, they are made and freed in between.
// REQUIRES: first < iterations().
Sequence Repeated(const Sequence& sequence, size_t first, size_t times);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_PLANNER_SEQUENCE_H_

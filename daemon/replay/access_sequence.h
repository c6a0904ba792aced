// AccessSequence: a checked trace in the planner's own types: the operations on chunks, moment by
// moment, in whole iterations.
//
// Chunks are numbers below `chunks.size()`. A chunk that the trace uses before it allocates it
// exists from the start. Moments after the last complete iteration are left out. The compute time
// of a moment is the time until the next one, minus the stalls in between.
//
// Thread safety: thread-compatible plain values.
#ifndef MEMTIDE_DAEMON_REPLAY_ACCESS_SEQUENCE_H_
#define MEMTIDE_DAEMON_REPLAY_ACCESS_SEQUENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "daemon/engine/interface/types.h"
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
  bool on_host = false;  // Its uses are in host memory, also where there is a device.
  // A part of the optimizer's step, computed beside the moments that follow it. It reads all of its
  // chunks, and writes the new content of some to their shadow chunks, which the end of the
  // iteration commits (docs/decisions/0013). Traces have no such moments.
  bool is_part = false;
  std::vector<ChunkEvent> events;  // In order.
};

// The most chunks of a part, shadow chunks included, as the client cuts them: the gradient's, and
// those of a parameter and two states twice, with other borders (_optimizer_step/executor.py).
inline constexpr uint32_t kPartChunks = 10;

struct PlayedChunk {
  ChunkKind kind = ChunkKind::kOther;
  bool from_start = false;  // Exists before the first moment.
  bool undefined = false;   // Is written before it is read, so that nothing zeroes it.
};

struct AccessSequence {
  Bytes chunk_size;
  // Slots of the traced job.
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
absl::StatusOr<AccessSequence> ToAccessSequence(const v1::Trace& trace);

// The chunks that parts write, ascending: each has a shadow chunk.
std::vector<uint32_t> ShadowedChunks(const AccessSequence& sequence);

// The most chunks that exist at once, shadow chunks included, counting only chunks with an
// operation.
uint32_t MostChunks(const AccessSequence& sequence);

// The time of all moments if nothing waits: parts are computed one by one beside the others.
Duration ComputeTime(const AccessSequence& sequence);

// The sequence, followed by `times` repetitions of its iterations from `first` on. Between them,
// chunks are allocated and freed so that those exist which exist when iteration `first` begins.
// REQUIRES: first < iterations().
AccessSequence Repeated(const AccessSequence& sequence, size_t first, size_t times);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACCESS_SEQUENCE_H_

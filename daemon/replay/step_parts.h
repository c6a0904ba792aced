// StepParts: the parts of an optimizer's step, as a session computes them beside its script: it
// asks the engine for the chunks of a part, computes it when they are there, and ends it. One part
// computes at a time, and few are under way.
//
// A part that has more chunks than host memory has room for beside the script's leases has them by
// turns: first those that it reads, a few at a time, and then those that it writes.
//
// Thread safety: thread-compatible. Deterministic.
#ifndef MEMTIDE_DAEMON_REPLAY_STEP_PARTS_H_
#define MEMTIDE_DAEMON_REPLAY_STEP_PARTS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "daemon/engine/interface/types.h"
#include "daemon/replay/simulated_node.h"

namespace memtide {

// Chunks without repetition.
struct StepPart {
  std::vector<ChunkId> reads, writes;  // `writes` are shadow chunks.
  Duration compute{0};
};

class StepParts {
 public:
  struct Options {
    uint32_t device_slots = 0, host_slots = 0;
    // Returns the script's moments since its last report, which go with a part's next call.
    std::function<std::vector<MomentReport>()> take_moments;
  };

  StepParts(SimulatedNode* node, Options options);

  // Begins the part now, or when one of those that are under way has ended.
  void Add(StepPart part);
  // Moves the clock until all parts have ended. Errors are the engine's.
  absl::Status Await();

 private:
  // One call: chunks that are in host memory together.
  struct Turn {
    std::vector<ChunkId> chunks;
    uint32_t reads = 0;
    Duration compute{0};
  };
  using Turns = std::deque<Turn>;  // Turns of one part which have not ended.

  Turns TurnsOf(const StepPart& part) const;
  void BeginWaiting();
  void Begin(Turns turns);
  void Compute(uint64_t number, Turns turns);
  void End(uint64_t number, Turns turns);

  SimulatedNode& node_;
  const Options options_;
  // The most chunks of a turn, and the most parts that are under way.
  const uint32_t most_chunks_, most_under_way_;
  std::deque<StepPart> waiting_;
  uint32_t under_way_ = 0;
  uint64_t last_number_ = 0;
  Instant computed_;  // When the last part that computes will have been computed.
  absl::Status status_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_STEP_PARTS_H_

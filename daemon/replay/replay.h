// Replay: runs a traced training run on the real engine, with simulated links.
//
// One session is alone on a node. Each use in the trace is a fetch, in order, at the fastest tier,
// or in host memory where its moment says so. Its lease ends with the fetch after the next one, so
// two leases are held while a chunk is in transfer. A moment's compute time passes in equal parts
// while its uses are leased. The engine gets the reports that a client would send. Regions and
// stores are made at once; time is virtual.
//
// Parts of a step are computed beside the moments (step_parts.h) into shadow chunks. At the end of
// an iteration all of them are awaited, which is a stall, and committed.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_REPLAY_REPLAY_H_
#define MEMTIDE_DAEMON_REPLAY_REPLAY_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "daemon/replay/access_sequence.h"
#include "daemon/replay/links.h"

namespace memtide {

// Iterations that are replayed and not counted: the first allocates the optimizer's state, the
// second is the first that repeats.
inline constexpr size_t kWarmUpIterations = 2;

// All but kMemtide evict when room is needed, and prefetch nothing.
enum class Policy : uint8_t {
  kLru,   // Evicts the least recently used chunk.
  kFifo,  // Evicts the chunk that has been in the tier longest.
  // PatrickStar (arXiv 2108.05818): evicts the chunk whose next traced use is farthest away. A
  // chunk has one copy only, so each move costs its bytes; replayed as if every use wrote.
  kPatrickStar,
  kBelady,   // The same, but clean copies are dropped.
  kMemtide,  // The daemon's policy.
};

struct ReplayOptions {
  Policy policy = Policy::kMemtide;
  // Zero: the tier does not exist. For the SSD tier see NeedsDisk.
  uint32_t device_slots = 0, host_slots = 0;
  LinkOptions links;
  double compute_scale = 1;  // Factor on the traced compute times.
};

struct IterationCost {
  LinkBytes moved;  // By transfers that began in the iteration.
  Duration stalled{0}, elapsed{0};

  IterationCost& operator+=(const IterationCost& other);
};

struct ReplayResult {
  std::vector<IterationCost> iterations;
  IterationCost counted;  // The sum, without warm-up.
  size_t counted_iterations = 0;
};

// Whether the node has an SSD tier: the tiers above it cannot hold all chunks, or the traced job
// had one.
bool NeedsDisk(const AccessSequence& sequence, const ReplayOptions& options);

// The errors that Replay returns before it begins.
absl::Status CheckReplay(const AccessSequence& sequence, const ReplayOptions& options);

// FAILED_PRECONDITION: the trace has no iteration after the warm-up. Errors of the engine
// (odd chunk size, fewer than 4 slots) are returned unchanged.
absl::StatusOr<ReplayResult> Replay(const AccessSequence& sequence, const ReplayOptions& options);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_REPLAY_H_

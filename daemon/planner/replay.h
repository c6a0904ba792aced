// Replay: a traced training run, played again on the real engine with modelled links.
//
// One session, alone on a node. Every use of the trace is a fetch, in order, at the fastest tier;
// its lease ends with the fetch after the next one, so two are held while a chunk is on its way. A
// moment's compute time passes in equal parts while its uses are held. What the engine learns of
// the run it is told as a client tells it. Regions and stores are made at once; time is virtual.
// Pure and deterministic; thread-compatible.
#ifndef MEMTIDE_DAEMON_PLANNER_REPLAY_H_
#define MEMTIDE_DAEMON_PLANNER_REPLAY_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "daemon/planner/links.h"
#include "daemon/planner/sequence.h"

namespace memtide {

// Iterations that are played but not counted: the first makes the optimizer's state, the second is
// the first that repeats.
inline constexpr size_t kWarmUpIterations = 2;

// All but kMemtide evict when room is needed, and do nothing ahead.
enum class Policy : uint8_t {
  kLru,   // Whoever was used longest ago leaves.
  kFifo,  // Whoever came first.
  // PatrickStar (arXiv 2108.05818), as its code has it: whoever is used last in what was traced
  // leaves. A chunk exists in one place only, so that each way costs its bytes; replayed as if
  // every use wrote.
  kPatrickStar,
  kBelady,   // The same, but what was not changed is dropped.
  kMemtide,  // The daemon's.
};

struct ReplayOptions {
  Policy policy = Policy::kMemtide;
  // Zero: no such tier. For the SSD, see NeedsDisk.
  uint32_t device_slots = 0, host_slots = 0;
  LinkOptions links;
  double compute_scale = 1;  // Of the traced compute times.
};

struct IterationCost {
  LinkBytes moved;  // By the transfers that began in it.
  Duration stalled{0}, elapsed{0};

  IterationCost& operator+=(const IterationCost& other);
};

struct ReplayResult {
  std::vector<IterationCost> iterations;
  IterationCost counted;  // The sum, without warm-up.
  size_t counted_iterations = 0;
};

// Whether an SSD tier is there: where the tiers above it cannot hold all, or the traced job had
// one.
bool NeedsDisk(const Sequence& sequence, const ReplayOptions& options);

// What Replay refuses before it begins.
absl::Status CheckReplay(const Sequence& sequence, const ReplayOptions& options);

// FAILED_PRECONDITION: the trace has no iteration after the warm-up. What the engine refuses (odd
// chunk size, fewer than 4 slots) comes as it says it.
absl::StatusOr<ReplayResult> Replay(const Sequence& sequence, const ReplayOptions& options);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_PLANNER_REPLAY_H_

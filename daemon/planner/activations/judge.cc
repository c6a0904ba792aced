#include "daemon/planner/activations/judge.h"

#include <algorithm>

#include "base/status_macros.h"
#include "daemon/planner/activations/plan_sequence.h"

namespace memtide {

namespace {

// The planned iteration is replayed this often: predictions begin with the second, and a plan of
// placement with the third. The last ones count.
constexpr size_t kReplayed = 5, kCounted = 2;

}  // namespace

absl::StatusOr<absl::optional<Verdict>> Judge::operator()(const Candidate& candidate) {
  Verdict verdict;
  verdict.most_kept = MostKept(model_, candidate);
  const absl::optional<Division> division = Divide(model_, verdict.most_kept);
  if (!division.has_value()) return absl::optional<Verdict>();
  verdict.division = *division;
  AccessSequence sequence = SequenceOf(model_, candidate);
  if (model_.fixed_slots == 0) {
    // More slots than chunks have no use, and what they would take may be kept.
    const uint32_t most = std::max(model_.least_slots, MostChunks(sequence));
    verdict.division.slots = std::min(division->slots, most);
    verdict.division.allowance = model_.budget - sequence.chunk_size * verdict.division.slots;
  }
  ReplayOptions options = options_;
  (options.device_slots > 0 ? options.device_slots : options.host_slots) = verdict.division.slots;
  ++replays_;
  MEMTIDE_ASSIGN_OR_RETURN(const ReplayResult result,
                           Replay(Repeated(sequence, 1, kReplayed - 1), options));
  IterationCost sum;
  for (size_t i = result.iterations.size() - kCounted; i < result.iterations.size(); ++i) {
    sum += result.iterations[i];
  }
  constexpr auto kTimes = static_cast<int64_t>(kCounted);
  verdict.elapsed = sum.elapsed / kTimes;
  verdict.stalled = sum.stalled / kTimes;
  verdict.moved = Bytes(sum.moved.Total().count() / kCounted);
  verdict.recomputed = RecomputeTime(model_, candidate);
  return absl::optional<Verdict>(verdict);
}

}  // namespace memtide

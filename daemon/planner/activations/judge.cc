#include "daemon/planner/activations/judge.h"

#include <algorithm>

#include "base/status_macros.h"
#include "daemon/planner/activations/plan_sequence.h"

namespace memtide {

namespace {

// The planned iteration is replayed this often: predictions begin with the second, and a plan of
// placement with the third. From the fourth on, times differ by less than 0.1%. The last one
// counts.
constexpr size_t kReplayed = 4;

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
  const IterationCost& last = result.iterations.back();
  verdict.elapsed = last.elapsed;
  verdict.stalled = last.stalled;
  verdict.moved = last.moved.Total();
  verdict.recomputed = RecomputeTime(model_, candidate);
  return absl::optional<Verdict>(verdict);
}

}  // namespace memtide

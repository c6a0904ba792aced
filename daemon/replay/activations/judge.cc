#include "daemon/replay/activations/judge.h"

#include <algorithm>

#include "base/status_macros.h"
#include "daemon/replay/activations/plan_sequence.h"

namespace memtide {

namespace {

// The planned iteration is replayed this often: predictions begin with the second, and a plan of
// placement with the third. From the fourth on, times differ by less than 0.1%. The last one
// counts.
constexpr size_t kReplayed = 4;

// The parts of a verdict that need no replay. The division of the budget gives chunks no more slots
// than they have use for.
absl::optional<Verdict> Divided(const ActivationModel& model, const Candidate& candidate,
                                const AccessSequence& sequence) {
  Verdict verdict;
  verdict.most_kept = MostKept(model, candidate);
  const absl::optional<Division> division = Divide(model, verdict.most_kept);
  if (!division.has_value()) return absl::nullopt;
  verdict.division = *division;
  verdict.chunks = sequence.chunk_size * MostChunks(sequence);
  verdict.recomputed = RecomputeTime(model, candidate);
  if (model.fixed_slots == 0) {
    // More slots than chunks have no use, and what they would take may be kept.
    const uint32_t most = std::max(model.least_slots, MostChunks(sequence));
    verdict.division.slots = std::min(division->slots, most);
    verdict.division.allowance = model.budget - sequence.chunk_size * verdict.division.slots;
  }
  return verdict;
}

}  // namespace

absl::optional<Verdict> Foreseen(const ActivationModel& model, const Candidate& candidate,
                                 Timeline* timeline) {
  absl::optional<Verdict> verdict = Divided(model, candidate, SequenceOf(model, candidate));
  if (!verdict.has_value()) return verdict;
  const double seconds = timeline->SecondsOf(candidate);
  verdict->elapsed = Duration(static_cast<int64_t>(seconds * 1e9));
  verdict->stalled =
      std::max(Duration(0), verdict->elapsed - verdict->recomputed - ComputeTime(model.states));
  verdict->moved = timeline->BytesOf(candidate);
  return verdict;
}

absl::StatusOr<absl::optional<Verdict>> Judge::operator()(const Candidate& candidate) {
  if (!Divide(model_, MostKept(model_, candidate)).has_value()) return absl::optional<Verdict>();
  const AccessSequence sequence = SequenceOf(model_, candidate);
  Verdict verdict = *Divided(model_, candidate, sequence);
  ReplayOptions options = options_;
  (options.device_slots > 0 ? options.device_slots : options.host_slots) = verdict.division.slots;
  ++replays_;
  MEMTIDE_ASSIGN_OR_RETURN(const ReplayResult result,
                           Replay(Repeated(sequence, 1, kReplayed - 1), options));
  const IterationCost& last = result.iterations.back();
  verdict.elapsed = last.elapsed;
  verdict.stalled = last.stalled;
  verdict.moved = last.moved;
  return absl::optional<Verdict>(verdict);
}

}  // namespace memtide

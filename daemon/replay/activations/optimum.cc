#include "daemon/replay/activations/optimum.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/replay/activations/judge.h"
#include "daemon/replay/activations/ranking.h"
#include "daemon/replay/activations/search.h"
#include "daemon/replay/activations/timeline.h"

namespace memtide {

namespace {

constexpr size_t kMostBlocksOfAll = 4;

bool HasBytes(const Block& block, SavedPart part) {
  return !block.bytes[static_cast<size_t>(part)].IsZero();
}

// The treatments of a block that differ: a part without bytes has one.
std::vector<BlockChoice> TreatmentsOf(const ActivationModel& model, size_t number) {
  constexpr Choice kAll[] = {Choice::kKeep, Choice::kMove, Choice::kRecompute};
  const Block& block = model.blocks[number];
  std::vector<BlockChoice> treatments;
  for (const Choice input : kAll) {
    for (const Choice attention : kAll) {
      for (const Choice rest : kAll) {
        const BlockChoice choice{input, attention, rest};
        if (!IsAllowed(model, number, choice)) continue;
        if (input != Choice::kKeep && !HasBytes(block, SavedPart::kInput)) continue;
        if (attention == Choice::kMove && !HasBytes(block, SavedPart::kAttention)) continue;
        if (rest != Choice::kKeep && !HasBytes(block, SavedPart::kRest)) continue;
        treatments.push_back(choice);
      }
    }
  }
  return treatments;
}

struct Plan {
  Candidate candidate;
  Duration computed{0};  // With what is computed again.
};

std::vector<Plan> AllPlans(const ActivationModel& model) {
  std::vector<Plan> plans(1);
  if (!model.others.empty()) plans.push_back({{{}, Choice::kMove}});
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    std::vector<Plan> longer;
    for (const BlockChoice& choice : TreatmentsOf(model, i)) {
      for (const Plan& plan : plans) {
        longer.push_back(plan);
        longer.back().candidate.blocks.push_back(choice);
      }
    }
    plans = std::move(longer);
  }
  Duration compute{0};
  for (const PlayedMoment& moment : model.states.moments) compute += moment.compute;
  std::vector<Plan> fitting;
  for (Plan& plan : plans) {
    if (!Divide(model, MostKept(model, plan.candidate)).has_value()) continue;
    plan.computed = compute + RecomputeTime(model, plan.candidate);
    fitting.push_back(std::move(plan));
  }
  std::stable_sort(fitting.begin(), fitting.end(),
                   [](const Plan& a, const Plan& b) { return a.computed < b.computed; });
  return fitting;
}

// Judges a plan, and remembers it if it is the best.
absl::StatusOr<absl::optional<Duration>> Take(const Candidate& candidate, const TimeOfPlan& time_of,
                                              BestPlan* best) {
  ++best->judged;
  MEMTIDE_ASSIGN_OR_RETURN(const absl::optional<Duration> elapsed, time_of(candidate));
  if (elapsed.has_value() && (!best->elapsed.has_value() || *elapsed < *best->elapsed)) {
    best->elapsed = elapsed;
    best->candidate = candidate;
  }
  return elapsed;
}

}  // namespace

TimeOfPlan TimeByReplay(const ActivationModel& model, const ReplayOptions& options) {
  return [&model, options](const Candidate& candidate) -> absl::StatusOr<absl::optional<Duration>> {
    MEMTIDE_ASSIGN_OR_RETURN(const absl::optional<Verdict> verdict,
                             Judge(model, options)(candidate));
    if (!verdict.has_value()) return absl::optional<Duration>();
    return absl::optional<Duration>(verdict->elapsed);
  };
}

TimeOfPlan TimeByTimeline(const ActivationModel& model, const ReplayOptions& options) {
  const auto timeline = std::make_shared<Timeline>(model, options);
  return [timeline](const Candidate& candidate) -> absl::StatusOr<absl::optional<Duration>> {
    const double seconds = timeline->SecondsOf(candidate);
    if (!std::isfinite(seconds)) return absl::optional<Duration>();
    return absl::optional<Duration>(Duration(static_cast<int64_t>(std::ceil(seconds * 1e9))));
  };
}

absl::StatusOr<BestPlan> BestOfAllPlans(const ActivationModel& model, const TimeOfPlan& time_of) {
  MEMTIDE_CHECK(model.blocks.size() <= kMostBlocksOfAll);
  BestPlan best;
  for (const Plan& plan : AllPlans(model)) {
    if (best.elapsed.has_value() && plan.computed >= *best.elapsed) break;
    MEMTIDE_ASSIGN_OR_RETURN(const absl::optional<Duration> elapsed,
                             Take(plan.candidate, time_of, &best));
    // Time is divided among uses in whole nanoseconds.
    MEMTIDE_CHECK(elapsed.has_value() && *elapsed + std::chrono::microseconds(1) >= plan.computed);
  }
  return best;
}

absl::StatusOr<BestPlan> BestRanked(const ActivationModel& model, const ReplayOptions& options,
                                    const TimeOfPlan& time_of, uint32_t most) {
  BestPlan best;
  Ranking ranking(model, options);
  const std::vector<Forced> forced = ForcedPlans(model);
  for (const Forced& each : forced) {
    MEMTIDE_ASSIGN_OR_RETURN(const absl::optional<Duration> elapsed,
                             Take(each.candidate, time_of, &best));
    if (elapsed.has_value()) ranking.Judged(each.candidate, *elapsed);
  }
  while (best.judged < most + forced.size()) {
    const absl::optional<Candidate> next = ranking.Next();
    if (!next.has_value()) break;
    MEMTIDE_ASSIGN_OR_RETURN(const absl::optional<Duration> elapsed, Take(*next, time_of, &best));
    if (elapsed.has_value()) ranking.Judged(*next, *elapsed);
  }
  return best;
}

}  // namespace memtide

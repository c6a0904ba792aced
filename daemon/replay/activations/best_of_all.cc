#include "daemon/replay/activations/best_of_all.h"

#include <algorithm>

#include "base/status_macros.h"

namespace memtide {

absl::StatusOr<Duration> BestOfAll(const ActivationModel& model, const ReplayOptions& options) {
  constexpr Choice kKeep = Choice::kKeep, kMove = Choice::kMove, kAgain = Choice::kRecompute;
  constexpr BlockChoice kChoices[] = {
      {kKeep, kKeep, kKeep}, {kMove, kMove, kMove}, {kKeep, kAgain, kAgain}};
  Judge judge(model, options);
  Duration best = Duration::max();
  size_t plans = 1;
  for (size_t i = 0; i < model.blocks.size(); ++i) plans *= 3;
  for (size_t plan = 0; plan < plans; ++plan) {
    Candidate candidate;
    bool is_allowed = true;
    for (size_t rest = plan; candidate.blocks.size() < model.blocks.size(); rest /= 3) {
      is_allowed &= IsAllowed(model, candidate.blocks.size(), kChoices[rest % 3]);
      candidate.blocks.push_back(kChoices[rest % 3]);
    }
    if (!is_allowed) continue;
    MEMTIDE_ASSIGN_OR_RETURN(const absl::optional<Verdict> verdict, judge(candidate));
    if (verdict.has_value()) best = std::min(best, verdict->elapsed);
  }
  return best;
}

}  // namespace memtide

// Optimum: the best of all plans, with every treatment of every part of every block. The search for
// plans is measured and tested against it.
//
// All plans that fit are sorted by the time that they compute, and judged in this order until no
// plan that is left could be faster: an iteration takes its computing at least. So no plan that
// could be the best is left out. Plans are judged by the engine's replay, or by the quick Timeline,
// which takes a hundredth of its time; the search can be judged by either, too.
//
// Thread safety: thread-safe. Deterministic.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_OPTIMUM_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_OPTIMUM_H_

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "daemon/replay/activations/activation_model.h"
#include "daemon/replay/activations/candidate.h"
#include "daemon/replay/replay.h"

namespace memtide {

// The time of an iteration; nullopt: the budget does not allow the candidate.
using TimeOfPlan =
    std::function<absl::StatusOr<absl::optional<Duration>>(const Candidate& candidate)>;

// REQUIRES: `model` lives as long as the function.
TimeOfPlan TimeByReplay(const ActivationModel& model, const ReplayOptions& options);
TimeOfPlan TimeByTimeline(const ActivationModel& model, const ReplayOptions& options);

struct BestPlan {
  Candidate candidate;
  absl::optional<Duration> elapsed;  // nullopt: no plan fits.
  uint32_t judged = 0;               // Plans.
};

// REQUIRES: at most four blocks, so that there are at most 20,000 plans. Errors are those of
// `time_of`.
absl::StatusOr<BestPlan> BestOfAllPlans(const ActivationModel& model, const TimeOfPlan& time_of);

// The plan that the search finds if `time_of` judges in place of the replay, at most `most` plans
// beside the forced ones.
absl::StatusOr<BestPlan> BestRanked(const ActivationModel& model, const ReplayOptions& options,
                                    const TimeOfPlan& time_of, uint32_t most);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_OPTIMUM_H_

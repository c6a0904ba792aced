#include "daemon/policy/job_forecast.h"

#include <utility>

namespace memtide {

namespace {

// Choices that the planner makes, one to two microseconds each: per reported use, at most per call,
// and at the end of an iteration, where plans of some hundred chunks are complete at once.
constexpr size_t kChoicesAUse = 8, kChoicesACall = 512;
constexpr uint32_t kChoicesAnIteration = 4096;
// An iteration with fewer than one in this many uses as predicted is not worth a plan.
constexpr uint32_t kAlike = 4;
// A job may be faster than in the iteration that was planned: it may have a member this many
// uses earlier.
constexpr uint32_t kEarlier = 8;

}  // namespace

// Starts the next plan. A plan holds for later iterations that are much like the planned one.
bool JobForecast::EndIteration(uint64_t clock, const absl::optional<ResidencyPlan::Slots>& slots,
                               Tier upper) {
  const uint64_t before = predictor_.last_iteration().number;
  predictor_.EndIteration(clock);
  const AccessPredictor::Iteration& was = predictor_.last_iteration();
  if (was.number == before) return false;
  const bool alike = was.as_expected > std::max(was.uses, was.expected) / kAlike;
  // A plan for another iteration would retain the wrong copies: none is better (decision 15).
  if (!slots.has_value() || !predictor_.repeats() || was.expected == 0 || !alike) {
    plan_ended_ = plan_ended_ || plan_.has_value();
    plan_.reset();
    next_plan_.reset();
    return true;
  }
  const bool holds = plan_.has_value() && !was.misprediction && plan_->slots() == *slots;
  // A plan in the making is finished first, even if it is a little out of date.
  if (holds || next_plan_.has_value()) return true;
  upper_ = upper;
  const Tier below = upper == Tier::kDevice ? Tier::kHost : Tier::kSsd;
  next_plan_.emplace(
      predictor_.Events(), *slots,
      ResidencyPlan::Transfers{links_.micros({below, upper}), links_.micros({upper, below})});
  if (!next_plan_->done()) next_plan_->Work(kChoicesAnIteration);
  return true;
}

AccessPredictor::Changes JobForecast::TakeChanges(size_t uses) {
  AccessPredictor::Changes changes = predictor_.TakeChanges();
  // Without the plan, other copies are the ones that may leave.
  if (std::exchange(plan_ended_, false)) changes.all = true;
  if (next_plan_.has_value()) {
    // The planner works in small parts beside the job, so that no call waits for a plan.
    const size_t choices = std::min(kChoicesAUse * uses, kChoicesACall);
    if (!next_plan_->done()) next_plan_->Work(static_cast<uint32_t>(choices));
    if (next_plan_->done()) {
      plan_ = std::exchange(next_plan_, absl::nullopt);
      // The eviction cost of every copy depends on the plan.
      changes.all = true;
    }
  }
  if (changes.all) {
    // The lookahead was computed with the old times.
    for (Lookahead& ahead : lookaheads_)
      ahead.prefetched_until = ahead.recompute_at = VirtualTime();
  }
  return changes;
}

absl::optional<ResidencyPlan::Stay> JobForecast::PlannedStay(Member member) const {
  if (!plan_.has_value()) return absl::nullopt;
  // The plan is looked up by the number of the use in its iteration, so that a slightly different
  // order keeps it.
  const absl::optional<uint32_t> nth = predictor_.LastEvent(member);
  return nth.has_value() ? plan_->After(member, *nth) : absl::nullopt;
}

bool JobForecast::HasPlannedSlot(Tier tier, Member member, VirtualTime time) const {
  const absl::optional<ResidencyPlan::Stay> stay = PlannedStay(member);
  if (tier != upper_ || !stay.has_value() || stay->upper) return true;
  const VirtualTime reported = lookaheads_[static_cast<size_t>(tier)].next_report;
  return time <= std::max(predictor_.now(), reported) + (stay->ahead + kEarlier);
}

}  // namespace memtide

// Residency plans: where iterations repeat, one plan places all chunks for a whole iteration.
#include <algorithm>
#include <utility>

#include "daemon/engine/state.h"

namespace memtide {

namespace {

// Choices that the planner makes, about a microsecond each: per reported use, at most per call, and
// at the end of an iteration, where plans of some hundred chunks are complete at once.
constexpr size_t kChoicesAUse = 8, kChoicesACall = 512;
constexpr uint32_t kChoicesAnIteration = 4096;
// An iteration with fewer than one in this many uses as predicted is not worth a plan.
constexpr uint32_t kAlike = 4;

}  // namespace

// nullopt: no plan is possible. Optimizer steps use chunks on another tier and exchange their
// contents, which plans do not model.
absl::optional<ResidencyPlan::Slots> EngineState::SlotsToPlan(const Job& job) const {
  if (!options_.placement->works_ahead() || job.committed_step > 0 || job.work == job.home) {
    return absl::nullopt;
  }
  ResidencyPlan::Slots slots;
  slots.upper = job.tier(job.work).slots->size();
  if (job.work == Tier::kDevice && job.home == Tier::kSsd) {
    slots.middle = job.tier(Tier::kHost).slots->size();
  }
  return slots;
}

// Starts the next plan at the end of an iteration. A plan holds for later iterations that are much
// like the planned one.
void EngineState::PlanIteration(Job& job) {
  const AccessPredictor::Iteration& was = job.predictor.last_iteration();
  const absl::optional<ResidencyPlan::Slots> slots = SlotsToPlan(job);
  const bool alike = was.as_expected > std::max(was.uses, was.expected) / kAlike;
  if (!slots.has_value() || !job.predictor.repeats() || was.expected == 0 || !alike) {
    job.plan.reset();
    job.next_plan.reset();
    return;
  }
  const bool pins = job.plan.has_value() && !was.misprediction && job.plan->slots() == *slots;
  if (pins || job.next_plan.has_value()) return;
  job.next_plan.emplace(job.predictor.Events(), *slots);
  if (!job.next_plan->done()) job.next_plan->Work(kChoicesAnIteration);
}

// True: a new plan is complete.
bool EngineState::WorkOnPlan(Job& job, const std::vector<MomentReport>& moments) {
  if (!job.next_plan.has_value()) return false;
  size_t uses = 0;
  for (const MomentReport& moment : moments) uses += moment.uses.size();
  const size_t choices = std::min(kChoicesAUse * uses, kChoicesACall);
  if (!job.next_plan->done()) job.next_plan->Work(static_cast<uint32_t>(choices));
  if (!job.next_plan->done()) return false;
  job.plan = std::exchange(job.next_plan, absl::nullopt);
  return true;
}

// nullopt: the plan does not cover the chunk.
absl::optional<bool> EngineState::PlannedToStay(const Chunk& chunk, Tier tier) const {
  const Job& job = *chunk.job;
  if (!job.plan.has_value()) return absl::nullopt;
  // The chunk was prefetched for its next use.
  if ((chunk.prefetched_to >> static_cast<int>(tier) & 1) != 0) return true;
  const absl::optional<uint32_t> nth = job.predictor.LastEvent(chunk.member);
  if (!nth.has_value()) return absl::nullopt;
  const absl::optional<ResidencyPlan::Stay> stay = job.plan->After(chunk.member, *nth);
  if (!stay.has_value()) return absl::nullopt;
  return tier == job.work ? stay->upper : stay->middle;
}

}  // namespace memtide

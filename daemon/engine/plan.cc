// Planning: a whole iteration at once, where iterations repeat.
#include <algorithm>
#include <utility>

#include "daemon/engine/state.h"

namespace memtide {

namespace {

// Members that choose, a microsecond each, for each use that is reported: plans are made beside the
// work. At most for a call; and for the end of an iteration, so that plans of some hundred chunks
// are made at once.
constexpr size_t kChoicesAUse = 8, kChoicesACall = 512;
constexpr uint32_t kChoicesAnIteration = 4096;
// Where less than this part of an iteration was as expected, it is no use to plan the next one.
constexpr uint32_t kAlike = 4;

}  // namespace

// nullopt: no use of the job can be planned. Steps use chunks on another tier and exchange what
// they hold.
absl::optional<Plan::Slots> EngineState::SlotsToPlan(const Job& job) const {
  if (options_.placement != Placement::kForesight || job.published_step > 0 ||
      job.work == job.home) {
    return absl::nullopt;
  }
  Plan::Slots slots;
  slots.upper = job.tier(job.work).slots->size();
  if (job.work == Tier::kDevice && job.home == Tier::kSsd) {
    slots.middle = job.tier(Tier::kHost).slots->size();
  }
  return slots;
}

// An iteration is over. A plan that is made from one holds for others that are much like it.
void EngineState::PlanIteration(Job& job) {
  const Foresight::Iteration& was = job.foresight.last_iteration();
  const absl::optional<Plan::Slots> slots = SlotsToPlan(job);
  const bool alike = was.as_expected > std::max(was.uses, was.expected) / kAlike;
  if (!slots.has_value() || !job.foresight.repeats() || was.expected == 0 || !alike) {
    job.plan.reset();
    job.next_plan.reset();
    return;
  }
  const bool holds = job.plan.has_value() && !was.surprise && job.plan->slots() == *slots;
  if (holds || job.next_plan.has_value()) return;
  job.next_plan.emplace(job.foresight.Events(), *slots);
  if (!job.next_plan->done()) job.next_plan->Work(kChoicesAnIteration);
}

// Whether there is a new one now.
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

// nullopt: it is not planned.
absl::optional<bool> EngineState::PlannedToStay(const Chunk& chunk, Tier tier) const {
  const Job& job = *chunk.job;
  if (!job.plan.has_value()) return absl::nullopt;
  // It has come for its next use.
  if ((chunk.came_ahead >> static_cast<int>(tier) & 1) != 0) return true;
  const absl::optional<uint32_t> nth = job.foresight.LastEvent(chunk.member);
  if (!nth.has_value()) return absl::nullopt;
  const absl::optional<Plan::Stay> stay = job.plan->After(chunk.member, *nth);
  if (!stay.has_value()) return absl::nullopt;
  return tier == job.work ? stay->upper : stay->middle;
}

}  // namespace memtide

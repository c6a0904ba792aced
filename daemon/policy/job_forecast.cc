#include "daemon/policy/job_forecast.h"

#include <set>
#include <utility>
#include <vector>

namespace memtide {

namespace {

// Choices that the planner makes, one to two microseconds each: per reported use, at most per call,
// and at the end of an iteration, where plans of some hundred chunks are complete at once.
constexpr size_t kChoicesAUse = 8, kChoicesACall = 512;
// A plan of slots takes more of them; mappings change until it is complete.
constexpr uint32_t kFasterForSlots = 4;
constexpr uint32_t kChoicesAnIteration = 4096;
// An iteration with fewer than one in this many uses as predicted is not worth a plan.
constexpr uint32_t kAlike = 4;
// A job may be faster than in the iteration that was planned: it may have a member this many
// uses earlier.
constexpr uint32_t kEarlier = 8;
// One slot in this many stays without members, for chunks whose own is taken, unless each member
// can have one of its own.
constexpr uint32_t kSpareSlots = 6;
// A choice of slots passes over all events: with more of them it would hold up the engine's loop.
constexpr size_t kMostEventsInSlots = 1 << 16;

std::vector<SlotNumber> SlotsForMembers(const std::vector<ResidencyPlan::Event>& events,
                                        std::vector<SlotNumber> slots) {
  std::set<Member> members;
  for (const ResidencyPlan::Event& event : events) members.insert(event.member);
  if (members.size() > slots.size()) slots.resize(slots.size() - slots.size() / kSpareSlots);
  return slots;
}

}  // namespace

// Starts the next plan. A plan holds for later iterations that are much like the planned one.
bool JobForecast::EndIteration(uint64_t clock, const absl::optional<ResidencyPlan::Slots>& slots,
                               Tier upper, SlotPlan::SlotNow there) {
  const uint64_t before = predictor_.last_iteration().number;
  predictor_.EndIteration(clock);
  const AccessPredictor::Iteration& was = predictor_.last_iteration();
  if (was.number == before) return false;
  const bool alike = was.as_expected > std::max(was.uses, was.expected) / kAlike;
  // A plan for another iteration would retain the wrong copies: none is better (decision 15).
  if (!slots.has_value() || !predictor_.repeats() || was.expected == 0 || !alike) {
    plan_changed_ = plan_changed_ || plan_.has_value();
    plan_.reset();
    next_plan_.reset();
    slot_plan_.reset();
    next_slot_plan_.reset();
    return true;
  }
  const absl::optional<ResidencyPlan>& latest = next_plan_.has_value() ? next_plan_ : plan_;
  const bool same_slots = latest.has_value() && latest->slots() == *slots;
  if (!same_slots && next_slot_plan_.has_value()) {
    next_slot_plan_.reset();
    slots_are_late_ = true;
  }
  if (next_slot_plan_.has_value() && next_slot_plan_->done()) {
    slot_plan_ = std::exchange(next_slot_plan_, absl::nullopt);
    plan_changed_ = true;
  }
  const bool late = slots_are_late_ && !next_slot_plan_.has_value();
  const bool holds = plan_.has_value() && !was.misprediction && same_slots && !late;
  if (upper == upper_ && slot_plan_.has_value() && slot_plan_->Renumber(there)) {
    plan_changed_ = true;
  }
  // A plan in the making is finished first, even if it is a little out of date.
  if (holds || next_plan_.has_value()) return true;
  upper_ = upper;
  const Tier below = upper == Tier::kDevice ? Tier::kHost : Tier::kSsd;
  const std::vector<ResidencyPlan::Event> events = predictor_.Events();
  const ResidencyPlan::Transfers transfers{links_.micros({below, upper}),
                                           links_.micros({upper, below})};
  next_plan_.emplace(events, *slots, transfers);
  // A large plan of slots takes some iterations, for which the other one cannot wait.
  slots_are_late_ = next_slot_plan_.has_value();
  if (!slots_are_late_) BeginSlotPlan(events, slots->fixed, transfers, there);
  if (!next_plan_->done()) next_plan_->Work(kChoicesAnIteration);
  return true;
}

void JobForecast::BeginSlotPlan(const std::vector<ResidencyPlan::Event>& events,
                                const std::vector<SlotNumber>& slots,
                                const ResidencyPlan::Transfers& transfers,
                                SlotPlan::SlotNow there) {
  if (slots.size() < kSpareSlots || events.size() > kMostEventsInSlots) {
    plan_changed_ = plan_changed_ || slot_plan_.has_value();
    slot_plan_.reset();
    return;
  }
  next_slot_plan_.emplace(events, SlotsForMembers(events, slots), transfers, [&](Member member) {
    const absl::optional<SlotNumber> planned = PlannedSlot(upper_, member);
    return planned.has_value() ? planned : there(member);
  });
}

// Works on the next plans. True: the one of residency is complete, and in force. The plan of slots
// waits for the end of an iteration, and for where members are then.
bool JobForecast::WorkOnPlans(uint32_t choices) {
  if (next_plan_.has_value()) {
    if (!next_plan_->done()) next_plan_->Work(choices);
    if (!next_plan_->done()) return false;
    plan_ = std::exchange(next_plan_, absl::nullopt);
    return true;
  }
  if (next_slot_plan_.has_value() && !next_slot_plan_->done()) {
    next_slot_plan_->Work(kFasterForSlots * choices);
  }
  return false;
}

AccessPredictor::Changes JobForecast::TakeChanges(size_t uses) {
  AccessPredictor::Changes changes = predictor_.TakeChanges();
  // Without the plan, other copies are the ones that may leave.
  if (std::exchange(plan_changed_, false)) changes.all = true;
  // The planners work in small parts beside the job, so that no call waits for a plan. The eviction
  // cost of every copy depends on the plan.
  const size_t choices = std::min(kChoicesAUse * uses, kChoicesACall);
  if (WorkOnPlans(static_cast<uint32_t>(choices))) changes.all = true;
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
  if (!nth.has_value()) return absl::nullopt;
  absl::optional<ResidencyPlan::Stay> stay = plan_->After(member, *nth);
  if (!stay.has_value() || !slot_plan_.has_value()) return stay;
  const absl::optional<SlotPlan::Stay> in_slot = slot_plan_->After(member, *nth);
  if (!in_slot.has_value()) return stay;
  return ResidencyPlan::Stay{in_slot->stays, stay->middle || !in_slot->stays, in_slot->ahead};
}

absl::optional<SlotNumber> JobForecast::PlannedSlot(Tier tier, Member member) const {
  if (tier != upper_ || !slot_plan_.has_value()) return absl::nullopt;
  return slot_plan_->SlotOf(member);
}

uint32_t JobForecast::UnwantedFor(SlotNumber slot) const {
  const auto left = static_cast<uint32_t>((predictor_.iteration_end() - predictor_.now()));
  return slot_plan_->UnwantedFor(slot, left);
}

bool JobForecast::HasPlannedSlot(Tier tier, Member member, VirtualTime time) const {
  const absl::optional<ResidencyPlan::Stay> stay = PlannedStay(member);
  if (tier != upper_ || !stay.has_value() || stay->upper) return true;
  // In its own slot it would be in the way of the member before it.
  if (slot_plan_.has_value()) return time <= predictor_.now() + stay->ahead;
  const VirtualTime reported = lookaheads_[static_cast<size_t>(tier)].next_report;
  return time <= std::max(predictor_.now(), reported) + (stay->ahead + kEarlier);
}

}  // namespace memtide

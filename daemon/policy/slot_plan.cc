#include "daemon/policy/slot_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace memtide {

namespace {

using Kind = ResidencyPlan::Event::Kind;

// Passes in which each member chooses again, and tried exchanges a member.
constexpr int kMostSweeps = 8;
constexpr uint32_t kExchangesAMember = 8;
// Units of work, in uses that are passed over: a choice, and what each slot costs besides.
constexpr int64_t kUsesAChoice = 64, kUsesASlot = 16;
// Leases cover the next events after a use: a turn within them cannot be made.
constexpr uint32_t kLeasedEvents = 2;
constexpr double kImpossible = 8;
// A turn whose transfers take longer than its gap costs up to as many transfers more.
constexpr double kShortGap = 2;
// A gap of this many events is long enough, where transfers take less time.
constexpr uint32_t kEnoughEvents = 48;
// In transfers. A member that moves for less would lose its mapping for nothing.
constexpr double kLeastGain = 0.1;

}  // namespace

SlotPlan::SlotPlan(const std::vector<ResidencyPlan::Event>& events,
                   const std::vector<SlotNumber>& slots, const ResidencyPlan::Transfers& transfers,
                   SlotNow now)
    : length_(static_cast<uint32_t>(events.size())),
      clock_(events.size() + 1),
      in_micros_(transfers.in_micros),
      out_micros_(transfers.out_micros) {
  for (const SlotNumber number : slots) {
    MEMTIDE_CHECK(indices_.emplace(number, static_cast<uint32_t>(slots_.size())).second) << number;
    slots_.emplace_back();
    slots_.back().number = number;
  }
  MEMTIDE_CHECK(!slots_.empty());
  uint32_t members = 0;
  for (const auto& event : events) members = std::max(members, event.member.value() + 1);
  uses_.resize(members);
  times_.resize(members);
  slot_.resize(members, kNone);
  std::vector<bool> freed(members);
  for (uint32_t time = 0; time < length_; ++time) {
    const ResidencyPlan::Event& event = events[time];
    const uint32_t member = event.member.value();
    std::vector<Use>& uses = uses_[member];
    times_[member].push_back(time);
    clock_[time + 1] = clock_[time] + event.micros;
    if (event.kind == Kind::kFree) {
      if (!uses.empty()) uses.back().last = true;
      freed[member] = true;
      continue;
    }
    if (uses.empty()) order_.push_back(member);
    uses.push_back({time, member, event.kind == Kind::kWrite, freed[member], false});
    freed[member] = false;
  }
  // A member that was freed after its last use begins the iteration anew.
  for (const uint32_t member : order_) {
    if (freed[member]) uses_[member].front().fresh = uses_[member].back().last = true;
  }
  done_ = order_.empty();
  wanted_.resize(members, kNone);
  for (const uint32_t member : order_) {
    const absl::optional<SlotNumber> slot = now(Member(member));
    const auto index = slot.has_value() ? indices_.find(*slot) : indices_.end();
    if (index != indices_.end()) wanted_[member] = index->second;
  }
}

bool SlotPlan::Renumber(SlotNow there) {
  bool changed = false;
  for (const uint32_t member : order_) {
    const uint32_t index = slot_[member];
    const std::vector<Use>& uses = slots_[index].uses;
    if (uses.size() != uses_[member].size()) continue;  // It shares the slot.
    const absl::optional<SlotNumber> number = there(Member(member));
    if (!number.has_value() || *number == slots_[index].number) continue;
    // The other number may be of a slot without members.
    const auto other = indices_.find(*number);
    const SlotNumber old = std::exchange(slots_[index].number, *number);
    indices_.erase(old);
    if (other != indices_.end()) {
      slots_[other->second].number = old;
      indices_[old] = other->second;
    }
    indices_[*number] = index;
    changed = true;
  }
  return changed;
}

absl::optional<SlotNumber> SlotPlan::SlotOf(Member member) const {
  const uint32_t number = member.value();
  if (number >= slot_.size() || slot_[number] == kNone) return absl::nullopt;
  return slots_[slot_[number]].number;
}

std::vector<SlotPlan::Use>::const_iterator SlotPlan::FirstFrom(const std::vector<Use>& uses,
                                                               uint32_t time) {
  return std::lower_bound(uses.begin(), uses.end(), time,
                          [](const Use& use, uint32_t bound) { return use.time < bound; });
}

absl::optional<SlotPlan::Stay> SlotPlan::After(Member member, uint32_t nth) const {
  if (!SlotOf(member).has_value() || nth >= times_[member.value()].size()) return absl::nullopt;
  const std::vector<uint32_t>& times = times_[member.value()];
  const uint32_t begin = times[nth];
  const uint32_t end = nth + 1 < times.size() ? times[nth + 1] : times.front() + length_;
  // The last use of the slot before `end`: of this member, if no other one had a turn.
  const std::vector<Use>& uses = slots_[slot_[member.value()]].uses;
  const uint32_t wrapped = end % length_;
  const auto next = FirstFrom(uses, wrapped);
  const Use& before = next == uses.begin() ? uses.back() : *std::prev(next);
  Stay stay;
  const uint32_t since = (wrapped + length_ - before.time - 1) % length_ + 1;
  stay.stays = before.member == member.value() || since >= end - begin;
  stay.ahead = stay.stays ? length_ : since - 1;
  return stay;
}

uint32_t SlotPlan::UnwantedFor(SlotNumber slot, uint32_t left) const {
  const auto index = indices_.find(slot);
  if (index == indices_.end() || slots_[index->second].uses.empty()) return kNone;
  const std::vector<Use>& uses = slots_[index->second].uses;
  const uint32_t now = length_ - std::min(left, length_);
  const auto next = FirstFrom(uses, now);
  return next != uses.end() ? next->time - now : length_ - now + uses.front().time;
}

double SlotPlan::CostOfTurn(const Use& from, const Use& to, bool written) const {
  const bool in = !to.fresh, out = written && !from.last;
  const uint32_t events = (to.time + length_ - from.time - 1) % length_ + 1;
  double cost = in + out;
  const uint64_t needed = in * in_micros_ + out * out_micros_;
  const uint64_t gap =
      (to.time > from.time ? 0 : clock_[length_]) + clock_[to.time] - clock_[from.time + 1];
  const bool together = clock_[to.time] == clock_[from.time] && to.time > from.time;
  if (events <= kLeasedEvents || together) return cost + kImpossible;
  const double by_events = 1 - static_cast<double>(events) / kEnoughEvents;
  const double by_time =
      gap < needed ? 1 - static_cast<double>(gap) / static_cast<double>(needed) : 0;
  // Squared, so that gaps of equal length are best.
  const double short_by = std::max({0.0, by_events, by_time});
  return cost + kShortGap * short_by * short_by;
}

double SlotPlan::CostOf(const std::vector<Use>& uses) const {
  if (uses.empty()) return 0;
  // Whether the first turn leaves something written is known at the end of the circle.
  const size_t count = uses.size();
  size_t first = 0;
  while (first < count && uses[first].member == uses[(first + 1) % count].member) ++first;
  if (first == count) return 0;
  double cost = 0;
  bool written = false;
  for (size_t i = 1; i <= count; ++i) {
    const Use& use = uses[(first + i) % count];
    const Use& next = uses[(first + i + 1) % count];
    written = written || use.writes;
    if (use.member == next.member) continue;
    cost += CostOfTurn(use, next, written);
    written = false;
  }
  return cost;
}

std::vector<SlotPlan::Use> SlotPlan::With(uint32_t slot, uint32_t member) const {
  std::vector<Use> merged;
  const std::vector<Use>& there = slots_[slot].uses;
  merged.reserve(there.size() + uses_[member].size());
  std::merge(there.begin(), there.end(), uses_[member].begin(), uses_[member].end(),
             std::back_inserter(merged),
             [](const Use& a, const Use& b) { return a.time < b.time; });
  return merged;
}

std::vector<SlotPlan::Use> SlotPlan::Without(uint32_t slot, uint32_t member) const {
  std::vector<Use> rest;
  for (const Use& use : slots_[slot].uses) {
    if (use.member != member) rest.push_back(use);
  }
  return rest;
}

void SlotPlan::Place(uint32_t member, uint32_t slot) {
  SlotUses& to = slots_[slot];
  to.uses = With(slot, member);
  to.cost = CostOf(to.uses);
  slot_[member] = slot;
}

void SlotPlan::Remove(uint32_t member) {
  SlotUses& from = slots_[slot_[member]];
  from.uses = Without(slot_[member], member);
  from.cost = CostOf(from.uses);
}

void SlotPlan::KeepSlot(uint32_t member) {
  if (wanted_[member] == kNone) return;
  Place(member, wanted_[member]);
  credit_ -= static_cast<int64_t>(slots_[wanted_[member]].uses.size());
}

void SlotPlan::Choose(uint32_t member) {
  const uint32_t was = slot_[member];
  if (was != kNone) Remove(member);
  uint32_t best = was == kNone ? 0 : was;
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    // Where nothing differs a member stays where it is.
    const uint32_t slot = was == kNone ? i : (was + i) % static_cast<uint32_t>(slots_.size());
    const std::vector<Use> uses = With(slot, member);
    credit_ -= kUsesASlot + static_cast<int64_t>(uses.size());
    const double cost = CostOf(uses) - slots_[slot].cost;
    if (cost >= least - kLeastGain) continue;
    least = cost;
    best = slot;
  }
  improved_ = improved_ || best != was;
  Place(member, best);
}

void SlotPlan::TryExchange(uint32_t a, uint32_t b) {
  const uint32_t slot_a = slot_[a], slot_b = slot_[b];
  if (slot_a == slot_b) return;
  const double before = slots_[slot_a].cost + slots_[slot_b].cost;
  Remove(a);
  Remove(b);
  Place(a, slot_b);
  Place(b, slot_a);
  credit_ -= 4 * kUsesASlot +
             2 * static_cast<int64_t>(slots_[slot_a].uses.size() + slots_[slot_b].uses.size());
  if (slots_[slot_a].cost + slots_[slot_b].cost < before - kLeastGain) {
    improved_ = true;
    return;
  }
  Remove(a);
  Remove(b);
  Place(a, slot_a);
  Place(b, slot_b);
}

uint32_t SlotPlan::Random(uint32_t below) {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX.
  return static_cast<uint32_t>((random_ >> 33) % below);
}

void SlotPlan::Work(uint32_t choices) {
  MEMTIDE_CHECK(!done_);
  credit_ += kUsesAChoice * choices;
  const auto members = static_cast<uint32_t>(order_.size());
  while (credit_ > 0 && !done_) {
    credit_ -= kUsesASlot;
    if (placed_ < members) {
      KeepSlot(order_[placed_++]);
    } else if (turn_ < members) {
      Choose(order_[turn_++]);
    } else if (exchanges_ < kExchangesAMember * members) {
      ++exchanges_;
      TryExchange(order_[Random(members)], order_[Random(members)]);
    } else {
      done_ = !improved_ || ++sweep_ == kMostSweeps;
      turn_ = exchanges_ = 0;
      improved_ = false;
    }
  }
}

uint32_t SlotPlan::transfers() const {
  uint32_t count = 0;
  for (const SlotUses& slot : slots_) {
    const size_t uses = slot.uses.size();
    bool written = false;
    for (size_t i = 0; i < 2 * uses; ++i) {
      const Use& use = slot.uses[i % uses];
      const Use& next = slot.uses[(i + 1) % uses];
      written = written || use.writes;
      if (use.member == next.member) continue;
      if (i >= uses) count += !next.fresh + (written && !use.last);
      written = false;
    }
  }
  return count;
}

}  // namespace memtide

#include "daemon/policy/eviction_queue.h"

#include "base/check.h"

namespace memtide {

void EvictionQueue::Add(const Candidate& candidate) {
  if (candidate.member >= members_.size()) members_.resize(candidate.member + 1);
  Member& member = members_[candidate.member];
  MEMTIDE_CHECK(!member.in) << "member " << candidate.member << " is there already";
  member = {true, candidate.cost, candidate.next_use};
  order(candidate.cost).emplace(candidate.next_use, candidate.member);
}

void EvictionQueue::Remove(uint32_t member) {
  MEMTIDE_CHECK(Contains(member)) << "member " << member;
  Member& found = members_[member];
  order(found.cost).erase({found.next_use, member});
  found.in = false;
}

bool EvictionQueue::Contains(uint32_t member) const {
  return member < members_.size() && members_[member].in;
}

absl::optional<Candidate> EvictionQueue::Last(EvictionCost cost) const {
  const Order& candidates = order(cost);
  if (candidates.empty()) return absl::nullopt;
  const auto [next_use, member] = *candidates.rbegin();
  return Candidate{member, cost, next_use};
}

size_t EvictionQueue::size() const {
  size_t sum = 0;
  for (const Order& order : orders_) sum += order.size();
  return sum;
}

absl::optional<Candidate> EvictionQueue::Next(uint64_t now) const {
  if (auto duplicate = Last(EvictionCost::kDuplicate)) return duplicate;
  // The plan lets this copy go in any case, so no other use suffers (decision 15).
  if (auto leaving = Last(EvictionCost::kLeaving)) return leaving;
  const absl::optional<Candidate> clean = Last(EvictionCost::kClean);
  const absl::optional<Candidate> dirty = Last(EvictionCost::kOnly);
  if (!clean.has_value() || !dirty.has_value()) return clean.has_value() ? clean : dirty;
  // Times from kUnknown on order members without a prediction; their distances mean nothing.
  if (clean->next_use >= AccessPredictor::kUnknown ||
      dirty->next_use >= AccessPredictor::kUnknown) {
    return dirty->next_use > clean->next_use ? dirty : clean;
  }
  const auto distance = [now](const Candidate& candidate) {
    return candidate.next_use > now ? candidate.next_use - now : 0;
  };
  return distance(*dirty) / dirty_weight_ > distance(*clean) ? dirty : clean;
}

}  // namespace memtide

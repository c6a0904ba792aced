#include "daemon/policy/eviction_queue.h"

#include "base/check.h"

namespace memtide {

void EvictionQueue::Add(const Candidate& candidate) {
  const uint32_t number = candidate.member.value();
  if (number >= entries_.size()) entries_.resize(number + 1);
  Entry& entry = entries_[number];
  MEMTIDE_CHECK(!entry.in) << "member " << candidate.member << " is there already";
  entry = {true, candidate.cost, candidate.next_use};
  order(candidate.cost).emplace(candidate.next_use, candidate.member);
}

void EvictionQueue::Remove(Member member) {
  MEMTIDE_CHECK(Contains(member)) << "member " << member;
  Entry& entry = entries_[member.value()];
  order(entry.cost).erase({entry.next_use, member});
  entry.in = false;
}

bool EvictionQueue::Contains(Member member) const {
  return member.value() < entries_.size() && entries_[member.value()].in;
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

absl::optional<Candidate> EvictionQueue::NextClean() const {
  if (auto free = Last(EvictionCost::kNone)) return free;
  return Last(EvictionCost::kClean);
}

absl::optional<Candidate> EvictionQueue::Next(VirtualTime now) const {
  if (auto free = Last(EvictionCost::kNone)) return free;
  // The plan lets this copy go in any case, so no other use suffers (decision 15).
  if (auto leaving = Last(EvictionCost::kLeaving)) return leaving;
  const absl::optional<Candidate> clean = Last(EvictionCost::kClean);
  const absl::optional<Candidate> dirty = Last(EvictionCost::kOnly);
  if (!clean.has_value() || !dirty.has_value()) return clean.has_value() ? clean : dirty;
  // Times from kUnknown on order members without a prediction; their distances mean nothing.
  if (clean->next_use >= AccessPredictor::kUnknown ||
      dirty->next_use >= AccessPredictor::kUnknown) {
    // A clean copy is preferred among equals, because it costs no write.
    return dirty->next_use > clean->next_use ? dirty : clean;
  }
  const auto distance = [now](const Candidate& candidate) {
    return candidate.next_use > now ? candidate.next_use - now : 0;
  };
  // The write-back of an only copy costs a second transfer, so its distance counts less.
  return distance(*dirty) / dirty_weight_ > distance(*clean) ? dirty : clean;
}

}  // namespace memtide

#include "daemon/policy/victims.h"

#include "base/check.h"

namespace memtide {

void Victims::Add(const Candidate& candidate) {
  if (candidate.member >= members_.size()) members_.resize(candidate.member + 1);
  Member& member = members_[candidate.member];
  MEMTIDE_CHECK(!member.in) << "member " << candidate.member << " is there already";
  member = {true, candidate.value, candidate.next_use};
  order(candidate.value).emplace(candidate.next_use, candidate.member);
}

void Victims::Remove(uint32_t member) {
  MEMTIDE_CHECK(Contains(member)) << "member " << member;
  Member& found = members_[member];
  order(found.value).erase({found.next_use, member});
  found.in = false;
}

bool Victims::Contains(uint32_t member) const {
  return member < members_.size() && members_[member].in;
}

absl::optional<Candidate> Victims::Last(CopyValue value) const {
  const Order& candidates = order(value);
  if (candidates.empty()) return absl::nullopt;
  const auto [next_use, member] = *candidates.rbegin();
  return Candidate{member, value, next_use};
}

size_t Victims::size() const {
  size_t sum = 0;
  for (const Order& order : orders_) sum += order.size();
  return sum;
}

absl::optional<Candidate> Victims::Next(uint64_t now) const {
  if (auto duplicate = Last(CopyValue::kDuplicate)) return duplicate;
  if (auto leaving = Last(CopyValue::kLeaving)) return leaving;
  const absl::optional<Candidate> clean = Last(CopyValue::kClean);
  const absl::optional<Candidate> dirty = Last(CopyValue::kOnly);
  if (!clean.has_value() || !dirty.has_value()) return clean.has_value() ? clean : dirty;
  if (clean->next_use >= Foresight::kUnknown || dirty->next_use >= Foresight::kUnknown) {
    return dirty->next_use > clean->next_use ? dirty : clean;
  }
  const auto distance = [now](const Candidate& candidate) {
    return candidate.next_use > now ? candidate.next_use - now : 0;
  };
  return distance(*dirty) / dirty_weight_ > distance(*clean) ? dirty : clean;
}

}  // namespace memtide

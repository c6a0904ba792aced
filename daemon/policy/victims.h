// Victims: which chunk leaves a tier next.
//
// The engine tells which chunks of a job may leave one tier (unleased, not moving, not at home
// there) and asks for the next victim: duplicates first, then those that are planned to leave, then
// whoever is expected last (Belady, IBM Systems Journal 1966), with the write-back of changed
// copies weighed in.
//
// Belady's rule is optimal where every loss costs one read. A copy that was changed costs a write
// and a read, so it stays before a clean one that is expected later, unless it is expected more
// than kDirtyWeight times as far away: so long a stay would cost more than it saves. Offline optima
// with write-backs are NP-hard (Beckmann et al., Writeback-Aware Caching, APOCS 2020); what the
// rule loses against a bound is measured (bench/README.md).
//
// Members are small numbers, dense per job. Numbers and order only: no bytes, no I/O, no clock.
// O(log n) a call, Next O(1). Pure, deterministic, thread-compatible.
#ifndef MEMTIDE_DAEMON_POLICY_VICTIMS_H_
#define MEMTIDE_DAEMON_POLICY_VICTIMS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/policy/foresight.h"

namespace memtide {

// What losing the copy would cost.
enum class CopyValue : uint8_t {
  kOnly,       // The only copy: it must be written before it is dropped.
  kClean,      // A slower tier has the same bytes.
  kDuplicate,  // Nothing is lost: all other tiers have them, or nobody wants them here.
  kLeaving,    // The only copy, but it is planned to be written and dropped.
};

struct Candidate {
  uint32_t member = 0;
  CopyValue value = CopyValue::kOnly;
  uint64_t next_use = 0;  // As Foresight says; from kUnknown on, only the order counts.
};

class Victims {
 public:
  // 1 is Belady's own rule.
  static constexpr uint32_t kDirtyWeight = 2;
  static constexpr size_t kValues = 4;  // Of CopyValue.
  explicit Victims(uint32_t dirty_weight = kDirtyWeight) : dirty_weight_(dirty_weight) {}

  // The member may leave from now on. REQUIRES: it is not there.
  void Add(const Candidate& candidate);
  // It may not leave any more. REQUIRES: it is there.
  void Remove(uint32_t member);
  bool Contains(uint32_t member) const;
  size_t size() const;
  // Who should leave first at the virtual time `now`; nullopt: nobody may.
  absl::optional<Candidate> Next(uint64_t now) const;

  // Calls visit(candidate) for those that are leaving, then the others, from the farthest on, until
  // that is false.
  template <typename Visitor>
  void VisitFarthest(Visitor visit) const;

 private:
  using Order = std::set<std::pair<uint64_t, uint32_t>>;  // Next use and member.
  Order& order(CopyValue value) { return orders_[static_cast<int>(value)]; }
  const Order& order(CopyValue value) const { return orders_[static_cast<int>(value)]; }
  absl::optional<Candidate> Last(CopyValue value) const;

  uint32_t dirty_weight_;
  std::array<Order, kValues> orders_;  // By CopyValue.
  struct Member {
    bool in = false;
    CopyValue value = CopyValue::kOnly;
    uint64_t next_use = 0;
  };
  std::vector<Member> members_;
};

template <typename Visitor>
void Victims::VisitFarthest(Visitor visit) const {
  std::array<Order::const_reverse_iterator, kValues> at;
  for (size_t i = 0; i < orders_.size(); ++i) at[i] = orders_[i].rbegin();
  auto& leaving = at[static_cast<size_t>(CopyValue::kLeaving)];
  for (; leaving != order(CopyValue::kLeaving).rend(); ++leaving) {
    if (!visit(Candidate{leaving->second, CopyValue::kLeaving, leaving->first})) return;
  }
  while (true) {
    size_t farthest = orders_.size();
    for (size_t i = 0; i < orders_.size(); ++i) {
      if (at[i] == orders_[i].rend()) continue;
      if (farthest == orders_.size() || at[i]->first > at[farthest]->first) farthest = i;
    }
    if (farthest == orders_.size()) return;
    const auto [next_use, member] = *at[farthest]++;
    if (!visit(Candidate{member, static_cast<CopyValue>(farthest), next_use})) return;
  }
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_VICTIMS_H_

// EvictionQueue: the chunks of one job that may leave one tier, in the order in which they should.
//
// The engine adds a chunk when it may leave the tier (not leased, not in transfer, the tier is not
// its home) and takes the next victim from Next: copies without a cost first, then chunks that the
// plan lets leave, then the one with the farthest predicted use (Belady, IBM Systems Journal 1966),
// weighed against the write-back that a dirty copy costs.
//
// Belady's rule is optimal where every eviction costs one read. Evicting a dirty copy costs a write
// and a read, so it stays before a clean copy that is used later, unless its own use is more than
// kDirtyWeight times as far away: so long a stay would cost more than it saves. Offline optima with
// write-backs are NP-hard (Beckmann et al., Writeback-Aware Caching, APOCS 2020); bench/README.md
// has what the rule loses against a bound.
//
// Next is O(1), all other calls are O(log n).
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_POLICY_EVICTION_QUEUE_H_
#define MEMTIDE_DAEMON_POLICY_EVICTION_QUEUE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "base/ids.h"
#include "daemon/policy/access_predictor.h"
#include "daemon/policy/virtual_time.h"

namespace memtide {

enum class EvictionCost : uint8_t {
  kOnly,     // The only valid copy: it is written back before it is dropped.
  kClean,    // A slower tier holds the same bytes.
  kNone,     // No cost: every other tier has the bytes, or they are not used here.
  kLeaving,  // The only valid copy, and the plan writes it back and drops it.
};

struct Candidate {
  Member member;
  EvictionCost cost = EvictionCost::kOnly;
  VirtualTime next_use;  // From AccessPredictor; from kUnknown on, only the order counts.
};

class EvictionQueue {
 public:
  // With 1, the queue follows Belady's rule.
  static constexpr uint32_t kDirtyWeight = 2;
  static constexpr size_t kCosts = 4;  // Values of EvictionCost.
  explicit EvictionQueue(uint32_t dirty_weight = kDirtyWeight) : dirty_weight_(dirty_weight) {}

  // The member may leave from now on. REQUIRES: !Contains(candidate.member).
  void Add(const Candidate& candidate);
  // The member may no longer leave. REQUIRES: Contains(member).
  void Remove(Member member);
  bool Contains(Member member) const;
  size_t size() const;
  // The next victim at the virtual time `now`; nullopt if the queue is empty.
  absl::optional<Candidate> Next(VirtualTime now) const;
  // The next one that leaves without a write; nullopt: there is none.
  absl::optional<Candidate> NextClean() const;
  // The next one of those that the plan lets leave with a write; nullopt: there is none.
  absl::optional<Candidate> NextLeaving() const { return Last(EvictionCost::kLeaving); }

  // Calls visit(candidate) for the kLeaving members, then for the others, farthest use first, until
  // a call returns false.
  template <typename Visitor>
  void VisitFarthest(Visitor visit) const;

 private:
  using Order = std::set<std::pair<VirtualTime, Member>>;  // Next use and member.
  Order& order(EvictionCost cost) { return orders_[static_cast<int>(cost)]; }
  const Order& order(EvictionCost cost) const { return orders_[static_cast<int>(cost)]; }
  absl::optional<Candidate> Last(EvictionCost cost) const;

  uint32_t dirty_weight_;
  std::array<Order, kCosts> orders_;  // By EvictionCost.
  struct Entry {
    bool in = false;
    EvictionCost cost = EvictionCost::kOnly;
    VirtualTime next_use;
  };
  std::vector<Entry> entries_;  // By member.
};

template <typename Visitor>
void EvictionQueue::VisitFarthest(Visitor visit) const {
  std::array<Order::const_reverse_iterator, kCosts> at;
  for (size_t i = 0; i < orders_.size(); ++i) at[i] = orders_[i].rbegin();
  auto& leaving = at[static_cast<size_t>(EvictionCost::kLeaving)];
  for (; leaving != order(EvictionCost::kLeaving).rend(); ++leaving) {
    if (!visit(Candidate{leaving->second, EvictionCost::kLeaving, leaving->first})) return;
  }
  while (true) {
    size_t farthest = orders_.size();
    for (size_t i = 0; i < orders_.size(); ++i) {
      if (at[i] == orders_[i].rend()) continue;
      if (farthest == orders_.size() || at[i]->first > at[farthest]->first) farthest = i;
    }
    if (farthest == orders_.size()) return;
    const auto [next_use, member] = *at[farthest]++;
    if (!visit(Candidate{member, static_cast<EvictionCost>(farthest), next_use})) return;
  }
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_EVICTION_QUEUE_H_

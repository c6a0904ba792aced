// LeaseLimits: how many leases a session may hold and use, by the budget of its share and by the
// soft one, which other jobs leave it (decisions 17 and 18).
//
// Pure. Thread-compatible.
#ifndef MEMTIDE_CLIENT_LEASE_LEASE_LIMITS_H_
#define MEMTIDE_CLIENT_LEASE_LEASE_LIMITS_H_

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace memtide::client {

class LeaseLimits {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // REQUIRES: the budget is not zero.
  explicit LeaseLimits(uint32_t budget) { SetBudget(budget); }

  // The budget of Open or Resize, whichever came last. Leases above it are reclaimed as uses end.
  // REQUIRES: it is not zero.
  void SetBudget(uint32_t budget) {
    MEMTIDE_CHECK(budget > 0);
    budget_ = budget;
  }
  // A budget for idle leases only, which tightens the other: one Acquire may still name as many
  // places as before. If `most_in_use` is not zero, an Acquire that would bring all leases in use
  // above it is refused. REQUIRES: the budget is not zero.
  void SetSoftBudget(uint32_t budget, uint32_t most_in_use) {
    MEMTIDE_CHECK(budget > 0);
    soft_budget_ = budget;
    soft_most_in_use_ = most_in_use == 0 ? kNone : most_in_use;
  }

  // The leases that may be held, unless more are in use.
  uint32_t budget() const { return std::min(soft_budget_, budget_); }
  // The places of one Acquire.
  uint32_t most_per_acquire() const { return budget_; }
  // The leases in use; kNone: as many as one Acquire may name, and those that are in use before.
  uint32_t most_in_use() const { return soft_most_in_use_ >= budget_ ? kNone : soft_most_in_use_; }
  // The number of leases above which idle ones are reclaimed. A session whose leases are all in use
  // would lose each faulted chunk to the next fault, so it may hold a few more than a small soft
  // budget.
  uint32_t MostHeld(uint32_t in_use) const {
    return std::max(budget(), std::min(budget_, in_use + kFaultHeadroom));
  }
  // The leases to keep free below the budget: enough that one release call ends a batch of them.
  uint32_t headroom() const { return std::min<uint32_t>(8, std::max<uint32_t>(1, budget() / 8)); }

 private:
  static constexpr uint32_t kFaultHeadroom = 4;

  uint32_t budget_;
  uint32_t soft_budget_ = kNone, soft_most_in_use_ = kNone;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_LEASE_LEASE_LIMITS_H_

#include "daemon/policy/eviction_queue.h"
#include "daemon/policy/placement_policy.h"

namespace memtide {

namespace {

class Predictive final : public PlacementPolicy {
 public:
  VirtualTime RankOf(const Copy& copy) const override { return FarthestFirst(copy); }
  bool follows_predictions() const override { return true; }
  uint32_t dirty_weight() const override { return EvictionQueue::kDirtyWeight; }
  bool discounts_dead_content() const override { return true; }
  bool works_ahead() const override { return true; }
};

}  // namespace

const PlacementPolicy& PredictivePolicy() {
  static constexpr Predictive kPolicy;
  return kPolicy;
}

}  // namespace memtide

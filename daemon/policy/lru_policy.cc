#include "daemon/policy/placement_policy.h"

namespace memtide {

namespace {

class Lru final : public PlacementPolicy {
 public:
  VirtualTime RankOf(const Copy& copy) const override { return OldestFirst(copy.ranked); }
};

}  // namespace

const PlacementPolicy& LruPolicy() {
  static constexpr Lru kPolicy;
  return kPolicy;
}

}  // namespace memtide

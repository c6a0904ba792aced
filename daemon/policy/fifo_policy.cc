#include "daemon/policy/placement_policy.h"

namespace memtide {

namespace {

class Fifo final : public PlacementPolicy {
 public:
  VirtualTime RankOf(const Copy& copy) const override { return OldestFirst(copy.made); }
};

}  // namespace

const PlacementPolicy& FifoPolicy() {
  static constexpr Fifo kPolicy;
  return kPolicy;
}

}  // namespace memtide

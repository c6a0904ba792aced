#include "daemon/policy/placement_policy.h"

namespace memtide {

namespace {

class Belady final : public PlacementPolicy {
 public:
  VirtualTime RankOf(const Copy& copy) const override { return FarthestFirst(copy); }
  bool follows_predictions() const override { return true; }
};

}  // namespace

const PlacementPolicy& BeladyPolicy() {
  static constexpr Belady kPolicy;
  return kPolicy;
}

}  // namespace memtide

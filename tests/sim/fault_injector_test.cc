// Shows that the checks bite: each fault that the fault injector can plant is seen within a few
// seeds.
#include "gtest/gtest.h"
#include "tests/sim/run_in_child.h"

namespace memtide::sim {
namespace {

constexpr uint64_t kSeeds = 200;

class FaultInjectorTest : public testing::TestWithParam<int> {};

TEST_P(FaultInjectorTest, IsSeen) {
  const auto fault = static_cast<Fault>(GetParam());
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const bool in_part = fault >= Fault::kPartFromOtherSlot;
    const Config config = in_part ? WithParts(MakeConfig(seed)) : MakeConfig(seed);
    const std::string seen = RunInChild(config, MakeOps(config), fault, /*one_in=*/4);
    if (seen.empty()) continue;
    std::cout << FaultName(fault) << ", seed " << seed << ": " << seen << "\n";
    return;
  }
  FAIL() << kSeeds << " seeds do not see that " << FaultName(fault);
}

INSTANTIATE_TEST_SUITE_P(Each, FaultInjectorTest, testing::Range(1, kFaults));

TEST(FaultInjectorTest, NoFaultIsSeenWhereNoneIsPlanted) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Config config = MakeConfig(seed);
    EXPECT_EQ(RunInChild(config, MakeOps(config), Fault::kNone), "") << Describe(config);
  }
}

}  // namespace
}  // namespace memtide::sim

#include "daemon/policy/placement_policy.h"

#include <vector>

#include "daemon/policy/eviction_queue.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using Copy = PlacementPolicy::Copy;

const std::vector<const PlacementPolicy*> kAll = {&PredictivePolicy(), &BeladyPolicy(),
                                                  &LruPolicy(), &FifoPolicy()};

// Member n is copies[n]; all are clean.
std::vector<uint32_t> Evicted(const PlacementPolicy& policy, const std::vector<Copy>& copies) {
  EvictionQueue queue(policy.dirty_weight());
  for (uint32_t n = 0; n < copies.size(); ++n) {
    queue.Add({Member(n), EvictionCost::kClean, policy.RankOf(copies[n])});
  }
  std::vector<uint32_t> order;
  while (const auto victim = queue.Next(VirtualTime())) {
    order.push_back(victim->member.value());
    queue.Remove(victim->member);
  }
  return order;
}

// The first was made last, ranked second and is used last.
const std::vector<Copy> kPredicted = {
    {VirtualTime(300), 3, 2}, {VirtualTime(100), 1, 3}, {VirtualTime(200), 2, 1}};
const std::vector<Copy> kUnpredicted = {
    {absl::nullopt, 3, 2}, {absl::nullopt, 1, 3}, {absl::nullopt, 2, 1}};

TEST(PlacementPolicyTest, TheFarthestPredictedUseGoesFirst) {
  EXPECT_EQ(Evicted(PredictivePolicy(), kPredicted), std::vector<uint32_t>({0, 2, 1}));
  EXPECT_EQ(Evicted(BeladyPolicy(), kPredicted), std::vector<uint32_t>({0, 2, 1}));
}

TEST(PlacementPolicyTest, LruAndFifoIgnorePredictions) {
  for (const std::vector<Copy>& copies : {kPredicted, kUnpredicted}) {
    EXPECT_EQ(Evicted(LruPolicy(), copies), std::vector<uint32_t>({2, 0, 1}));
    EXPECT_EQ(Evicted(FifoPolicy(), copies), std::vector<uint32_t>({1, 2, 0}));
  }
  EXPECT_FALSE(LruPolicy().follows_predictions());
  EXPECT_FALSE(FifoPolicy().follows_predictions());
}

TEST(PlacementPolicyTest, WithoutAPredictionTheLeastRecentlyUsedGoesFirst) {
  EXPECT_EQ(Evicted(PredictivePolicy(), kUnpredicted), std::vector<uint32_t>({2, 0, 1}));
  EXPECT_EQ(Evicted(BeladyPolicy(), kUnpredicted), std::vector<uint32_t>({2, 0, 1}));
}

TEST(PlacementPolicyTest, WithoutAPredictionNoRankIsTakenForATime) {
  for (const PlacementPolicy* policy : kAll) {
    EXPECT_GT(policy->RankOf({absl::nullopt, 1 << 30, 1 << 30}), AccessPredictor::kUnknown);
  }
}

TEST(PlacementPolicyTest, OnlyTheDaemonsPolicyWeighsCostsAndWorksAhead) {
  for (const PlacementPolicy* policy : kAll) {
    const bool predictive = policy == &PredictivePolicy();
    EXPECT_EQ(policy->dirty_weight() > 1, predictive);
    EXPECT_EQ(policy->discounts_dead_content(), predictive);
    EXPECT_EQ(policy->works_ahead(), predictive);
  }
}

}  // namespace
}  // namespace memtide

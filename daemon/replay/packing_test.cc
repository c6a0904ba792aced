#include "daemon/replay/packing.h"

#include <algorithm>
#include <random>

#include "gtest/gtest.h"

namespace memtide {
namespace {

int64_t WeightOf(const std::vector<Interval>& intervals, const std::vector<bool>& taken) {
  int64_t weight = 0;
  for (size_t i = 0; i < intervals.size(); ++i) weight += taken[i] ? intervals[i].weight : 0;
  return weight;
}

bool Fits(const std::vector<Interval>& intervals, const std::vector<bool>& taken, uint32_t tracks) {
  for (uint32_t point = 0; point < 64; ++point) {
    uint32_t used = 0;
    for (size_t i = 0; i < intervals.size(); ++i) {
      used += taken[i] && intervals[i].begin <= point && point < intervals[i].end;
    }
    if (used > tracks) return false;
  }
  return true;
}

int64_t HeaviestOfAll(const std::vector<Interval>& intervals, uint32_t tracks) {
  int64_t best = 0;
  for (uint32_t set = 0; set < 1u << intervals.size(); ++set) {
    std::vector<bool> taken(intervals.size());
    for (size_t i = 0; i < taken.size(); ++i) taken[i] = set >> i & 1;
    if (Fits(intervals, taken, tracks)) best = std::max(best, WeightOf(intervals, taken));
  }
  return best;
}

TEST(PackingTest, NoTracksHoldNothingButEmptyIntervals) {
  EXPECT_EQ(HeaviestPacking({{0, 2, 5}, {1, 1, 7}}, 0), (std::vector<bool>{false, true}));
  EXPECT_TRUE(HeaviestPacking({}, 3).empty());
}

TEST(PackingTest, ManyLightIntervalsBeatOneHeavyOneOverAllOfThem) {
  EXPECT_EQ(HeaviestPacking({{0, 9, 5}, {0, 3, 2}, {3, 6, 2}, {6, 9, 2}}, 1),
            (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(HeaviestPacking({{0, 9, 7}, {0, 3, 2}, {3, 6, 2}, {6, 9, 2}}, 1),
            (std::vector<bool>{true, false, false, false}));
}

TEST(PackingTest, IsAsHeavyAsTheHeaviestOfAllSets) {
  std::mt19937 random(4);
  const auto below = [&random](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  for (int round = 0; round < 2000; ++round) {
    std::vector<Interval> intervals(1 + below(10));
    for (Interval& interval : intervals) {
      interval.begin = below(12);
      interval.end = interval.begin + below(8);
      interval.weight = below(6);
    }
    const uint32_t tracks = below(4);
    const std::vector<bool> taken = HeaviestPacking(intervals, tracks);
    ASSERT_TRUE(Fits(intervals, taken, tracks)) << "round " << round;
    ASSERT_EQ(WeightOf(intervals, taken), HeaviestOfAll(intervals, tracks)) << "round " << round;
  }
}

}  // namespace
}  // namespace memtide

#include "daemon/policy/eviction_queue.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

uint32_t Next(const EvictionQueue& queue, uint64_t now = 0) {
  return queue.Next(VirtualTime(now))->member.value();
}

TEST(EvictionQueueTest, WhoIsExpectedLastLeavesFirst) {
  EvictionQueue queue;
  EXPECT_EQ(queue.Next(VirtualTime()), absl::nullopt);
  queue.Add({Member(1), EvictionCost::kClean, VirtualTime(10)});
  queue.Add({Member(2), EvictionCost::kClean, VirtualTime(30)});
  queue.Add({Member(3), EvictionCost::kClean, VirtualTime(20)});
  EXPECT_EQ(Next(queue), 2u);
  queue.Remove(Member(2));
  EXPECT_EQ(Next(queue), 3u);
}

TEST(EvictionQueueTest, CopiesWithoutACostLeaveBeforeAll) {
  EvictionQueue queue;
  queue.Add({Member(1), EvictionCost::kClean, VirtualTime(100)});
  queue.Add({Member(2), EvictionCost::kNone, VirtualTime(1)});
  EXPECT_EQ(Next(queue), 2u);
}

TEST(EvictionQueueTest, WhoIsPlannedToLeaveGoesAfterCopiesWithoutACostAndBeforeTheOthers) {
  EvictionQueue queue;
  queue.Add({Member(1), EvictionCost::kOnly, VirtualTime(1000)});
  queue.Add({Member(2), EvictionCost::kClean, VirtualTime(2000)});
  queue.Add({Member(3), EvictionCost::kLeaving, VirtualTime(10)});
  queue.Add({Member(4), EvictionCost::kLeaving, VirtualTime(20)});
  EXPECT_EQ(Next(queue), 4u);
  std::vector<uint32_t> visited;
  queue.VisitFarthest([&visited](const Candidate& candidate) {
    visited.push_back(candidate.member.value());
    return visited.size() < 3;
  });
  EXPECT_EQ(visited, std::vector<uint32_t>({4, 3, 2}));
  queue.Add({Member(5), EvictionCost::kNone, VirtualTime(5)});
  EXPECT_EQ(Next(queue), 5u);
  EXPECT_EQ(queue.size(), 5u);
}

TEST(EvictionQueueTest, AChangedCopyStaysUnlessItIsExpectedMoreThanTwiceAsFarAway) {
  EvictionQueue queue;
  queue.Add({Member(1), EvictionCost::kClean, VirtualTime(100)});
  queue.Add({Member(2), EvictionCost::kOnly, VirtualTime(190)});
  EXPECT_EQ(Next(queue), 1u);
  EXPECT_EQ(Next(queue, 50), 2u) << "140 / 2 is more than 50";
  queue.Remove(Member(2));
  queue.Add({Member(2), EvictionCost::kOnly, VirtualTime(210)});
  EXPECT_EQ(Next(queue), 2u);
}

TEST(EvictionQueueTest, WhereNothingIsForeseenOnlyTheOrderCounts) {
  EvictionQueue queue;
  queue.Add({Member(1), EvictionCost::kOnly, AccessPredictor::kUnknown + 2});
  queue.Add({Member(2), EvictionCost::kClean, AccessPredictor::kUnknown + 1});
  EXPECT_EQ(Next(queue), 1u);
}

TEST(EvictionQueueTest, AgreesWithANaiveMaximumOverRandomOperations) {
  std::mt19937 random(20261121);
  EvictionQueue queue(1);
  std::map<uint32_t, VirtualTime> model;
  for (int step = 0; step < 20000; ++step) {
    const uint32_t member = random() % 50;
    ASSERT_EQ(queue.Contains(Member(member)), model.count(member) > 0);
    if (model.erase(member) > 0) {
      queue.Remove(Member(member));
    } else {
      const VirtualTime next_use(random());
      model[member] = next_use;
      queue.Add({Member(member), random() % 2 == 0 ? EvictionCost::kClean : EvictionCost::kOnly,
                 next_use});
    }
    VirtualTime farthest;
    for (const auto& [each, next_use] : model) farthest = std::max(farthest, next_use);
    if (!model.empty()) {
      ASSERT_EQ(queue.Next(VirtualTime())->next_use, farthest);
    }
    VirtualTime before(~uint64_t{0});
    size_t visited = 0;
    queue.VisitFarthest([&](const Candidate& candidate) {
      EXPECT_LE(candidate.next_use, before);
      before = candidate.next_use;
      return ++visited < 5;
    });
    ASSERT_EQ(visited, std::min<size_t>(5, model.size()));
  }
}

}  // namespace
}  // namespace memtide

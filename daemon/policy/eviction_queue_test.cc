#include "daemon/policy/eviction_queue.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

uint32_t Next(const EvictionQueue& queue, uint64_t now = 0) { return queue.Next(now)->member; }

TEST(EvictionQueueTest, WhoIsExpectedLastLeavesFirst) {
  EvictionQueue queue;
  EXPECT_EQ(queue.Next(0), absl::nullopt);
  queue.Add({1, EvictionCost::kClean, 10});
  queue.Add({2, EvictionCost::kClean, 30});
  queue.Add({3, EvictionCost::kClean, 20});
  EXPECT_EQ(Next(queue), 2u);
  queue.Remove(2);
  EXPECT_EQ(Next(queue), 3u);
}

TEST(EvictionQueueTest, DuplicatesLeaveBeforeAll) {
  EvictionQueue queue;
  queue.Add({1, EvictionCost::kClean, 100});
  queue.Add({2, EvictionCost::kDuplicate, 1});
  EXPECT_EQ(Next(queue), 2u);
}

TEST(EvictionQueueTest, WhoIsPlannedToLeaveGoesAfterDuplicatesAndBeforeTheOthers) {
  EvictionQueue queue;
  queue.Add({1, EvictionCost::kOnly, 1000});
  queue.Add({2, EvictionCost::kClean, 2000});
  queue.Add({3, EvictionCost::kLeaving, 10});
  queue.Add({4, EvictionCost::kLeaving, 20});
  EXPECT_EQ(Next(queue), 4u);
  std::vector<uint32_t> visited;
  queue.VisitFarthest([&visited](const Candidate& candidate) {
    visited.push_back(candidate.member);
    return visited.size() < 3;
  });
  EXPECT_EQ(visited, std::vector<uint32_t>({4, 3, 2}));
  queue.Add({5, EvictionCost::kDuplicate, 5});
  EXPECT_EQ(Next(queue), 5u);
  EXPECT_EQ(queue.size(), 5u);
}

TEST(EvictionQueueTest, AChangedCopyStaysUnlessItIsExpectedMoreThanTwiceAsFarAway) {
  EvictionQueue queue;
  queue.Add({1, EvictionCost::kClean, 100});
  queue.Add({2, EvictionCost::kOnly, 190});
  EXPECT_EQ(Next(queue), 1u);
  EXPECT_EQ(Next(queue, 50), 2u) << "140 / 2 is more than 50";
  queue.Remove(2);
  queue.Add({2, EvictionCost::kOnly, 210});
  EXPECT_EQ(Next(queue), 2u);
}

TEST(EvictionQueueTest, WhereNothingIsForeseenOnlyTheOrderCounts) {
  EvictionQueue queue;
  queue.Add({1, EvictionCost::kOnly, AccessPredictor::kUnknown + 2});
  queue.Add({2, EvictionCost::kClean, AccessPredictor::kUnknown + 1});
  EXPECT_EQ(Next(queue), 1u);
}

TEST(EvictionQueueTest, AgreesWithANaiveMaximumOverRandomOperations) {
  std::mt19937 random(20261121);
  EvictionQueue queue(1);
  std::map<uint32_t, uint64_t> model;
  for (int step = 0; step < 20000; ++step) {
    const uint32_t member = random() % 50;
    ASSERT_EQ(queue.Contains(member), model.count(member) > 0);
    if (model.erase(member) > 0) {
      queue.Remove(member);
    } else {
      const uint64_t next_use = random();
      model[member] = next_use;
      queue.Add({member, random() % 2 == 0 ? EvictionCost::kClean : EvictionCost::kOnly, next_use});
    }
    uint64_t farthest = 0;
    for (const auto& [each, next_use] : model) farthest = std::max(farthest, next_use);
    if (!model.empty()) {
      ASSERT_EQ(queue.Next(0)->next_use, farthest);
    }
    uint64_t before = ~uint64_t{0};
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

#include "daemon/policy/victims.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

uint32_t Next(const Victims& victims, uint64_t now = 0) { return victims.Next(now)->member; }

TEST(VictimsTest, WhoIsExpectedLastLeavesFirst) {
  Victims victims;
  EXPECT_EQ(victims.Next(0), absl::nullopt);
  victims.Add({1, CopyValue::kClean, 10});
  victims.Add({2, CopyValue::kClean, 30});
  victims.Add({3, CopyValue::kClean, 20});
  EXPECT_EQ(Next(victims), 2u);
  victims.Remove(2);
  EXPECT_EQ(Next(victims), 3u);
}

TEST(VictimsTest, DuplicatesLeaveBeforeAll) {
  Victims victims;
  victims.Add({1, CopyValue::kClean, 100});
  victims.Add({2, CopyValue::kDuplicate, 1});
  EXPECT_EQ(Next(victims), 2u);
}

TEST(VictimsTest, WhoIsPlannedToLeaveGoesAfterDuplicatesAndBeforeTheOthers) {
  Victims victims;
  victims.Add({1, CopyValue::kOnly, 1000});
  victims.Add({2, CopyValue::kClean, 2000});
  victims.Add({3, CopyValue::kLeaving, 10});
  victims.Add({4, CopyValue::kLeaving, 20});
  EXPECT_EQ(Next(victims), 4u);
  std::vector<uint32_t> visited;
  victims.VisitFarthest([&visited](const Candidate& candidate) {
    visited.push_back(candidate.member);
    return visited.size() < 3;
  });
  EXPECT_EQ(visited, std::vector<uint32_t>({4, 3, 2}));
  victims.Add({5, CopyValue::kDuplicate, 5});
  EXPECT_EQ(Next(victims), 5u);
  EXPECT_EQ(victims.size(), 5u);
}

TEST(VictimsTest, AChangedCopyStaysUnlessItIsExpectedMoreThanTwiceAsFarAway) {
  Victims victims;
  victims.Add({1, CopyValue::kClean, 100});
  victims.Add({2, CopyValue::kOnly, 190});
  EXPECT_EQ(Next(victims), 1u);
  EXPECT_EQ(Next(victims, 50), 2u) << "140 / 2 is more than 50";
  victims.Remove(2);
  victims.Add({2, CopyValue::kOnly, 210});
  EXPECT_EQ(Next(victims), 2u);
}

TEST(VictimsTest, WhereNothingIsForeseenOnlyTheOrderCounts) {
  Victims victims;
  victims.Add({1, CopyValue::kOnly, Foresight::kUnknown + 2});
  victims.Add({2, CopyValue::kClean, Foresight::kUnknown + 1});
  EXPECT_EQ(Next(victims), 1u);
}

TEST(VictimsTest, AgreesWithANaiveMaximumOverRandomOperations) {
  std::mt19937 random(20261121);
  Victims victims(1);
  std::map<uint32_t, uint64_t> model;
  for (int step = 0; step < 20000; ++step) {
    const uint32_t member = random() % 50;
    ASSERT_EQ(victims.Contains(member), model.count(member) > 0);
    if (model.erase(member) > 0) {
      victims.Remove(member);
    } else {
      const uint64_t next_use = random();
      model[member] = next_use;
      victims.Add({member, random() % 2 == 0 ? CopyValue::kClean : CopyValue::kOnly, next_use});
    }
    uint64_t farthest = 0;
    for (const auto& [each, next_use] : model) farthest = std::max(farthest, next_use);
    if (!model.empty()) {
      ASSERT_EQ(victims.Next(0)->next_use, farthest);
    }
    uint64_t before = ~uint64_t{0};
    size_t visited = 0;
    victims.VisitFarthest([&](const Candidate& candidate) {
      EXPECT_LE(candidate.next_use, before);
      before = candidate.next_use;
      return ++visited < 5;
    });
    ASSERT_EQ(visited, std::min<size_t>(5, model.size()));
  }
}

}  // namespace
}  // namespace memtide

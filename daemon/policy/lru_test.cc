#include "daemon/policy/lru.h"

#include <algorithm>
#include <deque>
#include <random>

#include "gtest/gtest.h"

namespace memtide {
namespace {

TEST(LruPolicyTest, OldestLeavesFirst) {
  LruPolicy policy;
  EXPECT_EQ(policy.Next(), absl::nullopt);
  policy.Add(7, CopyValue::kOnly);
  policy.Add(3, CopyValue::kOnly);
  EXPECT_EQ(policy.Next(), 7u);
  policy.Remove(7);
  policy.Add(7, CopyValue::kOnly);
  EXPECT_EQ(policy.Next(), 3u);
}

TEST(LruPolicyTest, DuplicatesLeaveBeforeOnlyCopies) {
  LruPolicy policy;
  policy.Add(1, CopyValue::kOnly);
  policy.Add(2, CopyValue::kDuplicate);
  EXPECT_EQ(policy.Next(), 2u);
}

TEST(LruPolicyTest, AgreesWithANaiveListOverRandomOperations) {
  std::mt19937 random(20261120);
  LruPolicy policy;
  std::deque<uint32_t> model;
  for (int step = 0; step < 20000; ++step) {
    const uint32_t member = random() % 40;
    const auto found = std::find(model.begin(), model.end(), member);
    ASSERT_EQ(policy.Contains(member), found != model.end());
    if (found != model.end()) {
      policy.Remove(member);
      model.erase(found);
    } else if (random() % 4 == 0) {
      policy.Add(member, CopyValue::kDuplicate);
      model.push_front(member);
    } else {
      policy.Add(member, CopyValue::kOnly);
      model.push_back(member);
    }
    ASSERT_EQ(policy.Next(), model.empty() ? absl::nullopt : absl::make_optional(model.front()));
  }
}

}  // namespace
}  // namespace memtide

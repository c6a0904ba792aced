#include "daemon/engine/tables/tier_mark.h"

#include "gtest/gtest.h"

namespace memtide {
namespace {

TEST(TierMarkTest, ASetMarkIsCountedUntilItIsCleared) {
  MarkCount count;
  TierMark a, b;
  EXPECT_FALSE(a.has_value());
  EXPECT_EQ(a.value_or(Tier::kSsd), Tier::kSsd);
  count.Set(a, Tier::kHost);
  count.Set(b, Tier::kDevice);
  EXPECT_EQ(count.value(), 2u);
  EXPECT_EQ(*a, Tier::kHost);
  EXPECT_EQ(b.value_or(Tier::kSsd), Tier::kDevice);
  count.Clear(a);
  EXPECT_EQ(count.value(), 1u);
  EXPECT_FALSE(a.has_value());
  EXPECT_TRUE(b.has_value());
}

TEST(TierMarkTest, AMarkHasTwoBytes) { EXPECT_EQ(sizeof(TierMark), 2u); }

TEST(TierMarkDeathTest, CountingTwiceOrNotEndsTheProcess) {
  MarkCount count, other;
  TierMark mark;
  EXPECT_DEATH(count.Clear(mark), "not counted");
  count.Set(mark, Tier::kHost);
  EXPECT_DEATH(count.Set(mark, Tier::kHost), "counted twice");
  EXPECT_DEATH(other.Clear(mark), "not counted");
}

}  // namespace
}  // namespace memtide

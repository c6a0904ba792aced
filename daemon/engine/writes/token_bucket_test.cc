#include "daemon/engine/writes/token_bucket.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <utility>

#include "daemon/engine/writes/day_window.h"

namespace memtide {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

constexpr Bytes kBucketBudget = GiB(10);

Instant At(Duration time) { return Instant(time); }

// The bytes that were taken, with the most in any 24 hours.
class Taken {
 public:
  void Add(Instant at, Bytes size) {
    all_ += size;
    last_day_ += size;
    taken_.emplace_back(at, size);
    while (taken_.front().first <= at - kDay) {
      last_day_ -= taken_.front().second;
      taken_.pop_front();
    }
    most_in_a_day_ = std::max(most_in_a_day_, last_day_);
  }
  Bytes all() const { return all_; }
  Bytes most_in_a_day() const { return most_in_a_day_; }

 private:
  std::deque<std::pair<Instant, Bytes>> taken_;
  Bytes all_, last_day_, most_in_a_day_;
};

TEST(TokenBucketTest, ADemandAboveTheBudgetGetsItOverDaysAndNeverMoreInADay) {
  std::mt19937 random(1);
  for (const Bytes budget : {kBucketBudget, Bytes(1'000'003'000), GiB(100'000)}) {
    TokenBucket bucket(budget);
    Taken taken;
    Instant now;
    const int days = 20;
    while (now < At(kDay * days)) {
      const Bytes size(1 + random() % (budget.count() / 100));
      while (bucket.Has(now, size)) {
        bucket.Take(size);
        taken.Add(now, size);
      }
      now += std::chrono::milliseconds(random() % 100'000);
    }
    EXPECT_LE(taken.most_in_a_day(), budget);
    const double of_budget =
        static_cast<double>(taken.all().count()) / days / static_cast<double>(budget.count());
    EXPECT_NEAR(of_budget, 1, 0.0101);
  }
}

TEST(TokenBucketTest, ADemandBelowTheBudgetNeverWaits) {
  TokenBucket bucket(kBucketBudget);
  for (Instant now; now < At(kDay * 3); now += seconds(60)) {
    ASSERT_TRUE(bucket.Has(now, MiB(6)));  // 8.4 GiB a day.
    bucket.Take(MiB(6));
  }
}

TEST(TokenBucketTest, WritesLargerThanABurstHaveTheirTurnAndStayWithinTheBudget) {
  TokenBucket bucket(kBucketBudget);
  Taken taken;
  for (Instant now; now < At(kDay * 10); now += seconds(10)) {
    const Bytes size = taken.all().IsMultipleOf(GiB(2)) ? GiB(1) : MiB(1);
    if (!bucket.Has(now, size)) continue;
    bucket.Take(size);
    taken.Add(now, size);
  }
  EXPECT_GT(taken.all(), GiB(20));
  EXPECT_LE(taken.most_in_a_day(), kBucketBudget);
}

TEST(TokenBucketTest, ARestartGivesNothing) {
  Taken taken;
  Instant now;
  for (int restart = 0; restart < 500; ++restart) {
    TokenBucket bucket(kBucketBudget,
                       restart == 0 ? TokenBucket::Start::kFull : TokenBucket::Start::kEmpty);
    for (const Instant end = now + std::chrono::minutes(5); now < end; now += seconds(1)) {
      while (bucket.Has(now, MiB(1))) {
        bucket.Take(MiB(1));
        taken.Add(now, MiB(1));
      }
    }
  }
  EXPECT_LE(taken.most_in_a_day(), kBucketBudget);
  EXPECT_GT(taken.most_in_a_day(), GiB(9));
}

TEST(TokenBucketTest, WhatIsReturnedCanBeTakenAgainUpToTheCapacity) {
  TokenBucket bucket(kBucketBudget);
  const Bytes burst(kBucketBudget.count() / 100);
  ASSERT_TRUE(bucket.Has(At(hours(1)), burst));
  bucket.Take(burst);
  EXPECT_FALSE(bucket.Has(At(hours(1)), Bytes(1)));
  bucket.Return(burst);
  bucket.Return(burst);
  ASSERT_TRUE(bucket.Has(At(hours(1)), burst));
  bucket.Take(burst);
  EXPECT_FALSE(bucket.Has(At(hours(1)), Bytes(1)));
}

TEST(TokenBucketTest, WithoutABudgetNothingWaits) {
  TokenBucket bucket(Bytes(), TokenBucket::Start::kEmpty);
  EXPECT_TRUE(bucket.Has(At(hours(0)), GiB(1000)));
  bucket.Take(GiB(1000));
  EXPECT_TRUE(bucket.Has(At(hours(0)), GiB(1000)));
}

TEST(DayWindowTest, ASlotCountsAsLongAsAPartOfItIsInTheLastDay) {
  DayWindow window;
  window.Add(At(-hours(5)), Bytes(3));  // Before the machine was started.
  window.Add(At(hours(1)), Bytes(10));
  window.Add(At(hours(1) + DayWindow::kSlot - seconds(1)), Bytes(1));
  window.Add(At(hours(2)), Bytes(100));
  EXPECT_EQ(window.Sum(At(hours(2))), Bytes(114));
  EXPECT_EQ(window.Sum(At(hours(19))), Bytes(114));
  EXPECT_EQ(window.Sum(At(hours(25))), Bytes(111));
  EXPECT_EQ(window.Sum(At(hours(25) + DayWindow::kSlot)), Bytes(100));
  EXPECT_EQ(window.Slots().at(At(hours(2))), Bytes(100));
  EXPECT_EQ(window.Sum(At(hours(60))), Bytes(0));
  EXPECT_TRUE(window.Slots().empty());
}

}  // namespace
}  // namespace memtide

#include "daemon/io/stripes_by_speed.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::Not;

// Directories on drives of their own.
StripeCounts BySpeed(const std::vector<double>& speeds) {
  std::vector<StripedDirectory> directories;
  for (size_t i = 0; i < speeds.size(); ++i) directories.push_back({i, speeds[i]});
  return StripesBySpeed(directories);
}

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}
double Sum(const StripeCounts& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0.0);
}

TEST(StripesBySpeedTest, DirectoriesGetStripesInProportionToTheirSpeed) {
  EXPECT_THAT(BySpeed({3e9, 1e9}), ElementsAre(3, 1));
  EXPECT_THAT(BySpeed({1e8, 1e9}), ElementsAre(1, 10));
  EXPECT_THAT(BySpeed({2e9, 1e9, 2e9}), ElementsAre(2, 1, 2));
  EXPECT_THAT(BySpeed({7e9}), ElementsAre(1));
}

// Whatever the speeds are: within 2% of the whole, and all end at nearly the same time.
TEST(StripesBySpeedTest, SharesAreWithinTwoPercentOfTheSpeeds) {
  std::minstd_rand random(37);
  for (int i = 0; i < 500; ++i) {
    std::vector<double> speeds(1 + random() % 5);
    // No two of them count as equal, and none as slower than the slowest that counts.
    double speed = 1e9;
    for (double& each : speeds) {
      each = speed;
      speed *= 0.5 + 0.34 * (random() % 100) / 100;
    }
    const StripeCounts counts = BySpeed(speeds);
    ASSERT_TRUE(Stripes::Valid(counts));
    double slowest = 0;
    for (size_t k = 0; k < speeds.size(); ++k) {
      ASSERT_NEAR(counts[k] / Sum(counts), speeds[k] / Sum(speeds), 0.02);
      slowest = std::max(slowest, counts[k] / speeds[k]);
    }
    ASSERT_GE(Sum(counts) / slowest, 0.98 * Sum(speeds));
  }
}

TEST(StripesBySpeedTest, WhatMayBeNoiseOfTheMeasurementKeepsStripesEqual) {
  EXPECT_THAT(BySpeed({1e9, 0.86e9}), ElementsAre(1, 1));
  EXPECT_THAT(BySpeed({0.9e9, 1e9, 0.95e9}), ElementsAre(1, 1, 1));
  EXPECT_THAT(BySpeed({1e9, 0.84e9}), Not(ElementsAre(1, 1)));
}

TEST(StripesBySpeedTest, NoDirectoryHasLessThanASixteenthOfTheFastest) {
  EXPECT_THAT(BySpeed({1e12, 1}), ElementsAre(16, 1));
  EXPECT_THAT(BySpeed(std::vector<double>{1, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9}), Each(Gt(0)));
}

TEST(StripesBySpeedTest, ADirectoryThatCannotBeMeasuredCountsAsTheSlowest) {
  EXPECT_THAT(BySpeed({4e9, 0, 1e9}), ElementsAre(4, 1, 1));
  EXPECT_THAT(BySpeed({0, 0}), ElementsAre(1, 1));
}

TEST(StripesBySpeedTest, DirectoriesOnOneDriveShareItsSpeed) {
  EXPECT_THAT(StripesBySpeed({{0, 1e9}, {1, 1e9}, {0, 1e9}}), ElementsAre(1, 2, 1));
  EXPECT_THAT(StripesBySpeed({{0, 1e9}, {0, 1e9}}), ElementsAre(1, 1));
}

TEST(StripesBySpeedTest, NoDirectoryGetsMoreThanItHasRoomFor) {
  EXPECT_THAT(StripesBySpeed({{0, 9e9, 0.5}, {1, 1e9, 1}}), ElementsAre(1, 1));
  EXPECT_THAT(StripesBySpeed({{0, 9e9, 0.75}, {1, 1e9, 1}, {2, 1e9, 1}}), ElementsAre(6, 1, 1));
  EXPECT_THAT(StripesBySpeed({{0, 1e9, 0}, {1, 1e9, 1}}), ElementsAre(0, 2));
  // Where nothing fits, making the stores says so.
  EXPECT_THAT(StripesBySpeed({{0, 1e9, 0.1}, {1, 1e9, 0.1}}), ElementsAre(1, 1));
}

}  // namespace
}  // namespace memtide

// Stochastic rounding, with SGD of lr 0: the parameter is rounded and nothing else.
#include <cmath>
#include <map>

#include "daemon/optimizer/adam.h"
#include "daemon/optimizer/sgd.h"
#include "daemon/optimizer/testing/test_spans.h"
#include "gtest/gtest.h"

namespace memtide::optimizer {
namespace {

constexpr size_t kSize = 1 << 16;

struct Place {
  uint64_t seed = 1, step = 1, first_element = 0;
};

// Moves 1 by `distance` of the way to the next bf16, 1 + 2^-7, kSize times, and says where each was
// rounded up.
std::vector<bool> RoundedUp(double distance, const Place& place) {
  const Numbers gradient(Format::kFloat32, std::vector<double>(kSize, distance));
  const Numbers parameter(Format::kBfloat16, std::vector<double>(kSize, 1));
  Numbers rounded(Format::kBfloat16, std::vector<double>(kSize));
  SgdOptions options;
  options.lr = std::ldexp(1, -7);
  options.maximize = true;
  StepSpans spans;
  spans.gradient = gradient.input();
  spans.parameter = parameter.input();
  spans.new_parameter = rounded.output();
  spans.rounding_seed = place.seed;
  spans.first_element = place.first_element;
  SgdStep(options, place.step, spans, {}, {});
  std::vector<bool> up;
  for (size_t i = 0; i < kSize; ++i) {
    EXPECT_TRUE(rounded.value(i) == 1 || rounded.value(i) == 1 + std::ldexp(1, -7)) << i;
    up.push_back(rounded.value(i) > 1);
  }
  return up;
}

double Share(const std::vector<bool>& up) {
  size_t count = 0;
  for (const bool each : up) count += each;
  return static_cast<double>(count) / static_cast<double>(up.size());
}

// Five standard deviations of a share.
double Tolerance(double chance) { return 5 * std::sqrt(chance * (1 - chance) / kSize); }

TEST(RoundingTest, GoesUpInProportionToTheDistance) {
  for (const double distance : {0.0, 0.01, 0.25, 0.5, 0.9}) {
    EXPECT_NEAR(Share(RoundedUp(distance, {})), distance, Tolerance(distance) + 2e-5) << distance;
  }
}

TEST(RoundingTest, SeedsStepsAndElementsAreIndependent) {
  const std::vector<bool> base = RoundedUp(0.5, {});
  const Place others[] = {{2, 1, 0},
                          {1, 2, 0},
                          {1, 1, 1},
                          {1, 1, 8},
                          {1, 1, kSize},
                          {1, 1, uint64_t{1} << 32},
                          {1, uint64_t{1} << 40, 0}};
  for (const Place& place : others) {
    const std::vector<bool> other = RoundedUp(0.5, place);
    std::vector<bool> agree;
    for (size_t i = 0; i < kSize; ++i) agree.push_back(base[i] == other[i]);
    EXPECT_NEAR(Share(agree), 0.5, Tolerance(0.5))
        << place.seed << " " << place.step << " " << place.first_element;
  }
}

TEST(RoundingTest, NeighboursAreIndependent) {
  const std::vector<bool> up = RoundedUp(0.5, {});
  for (const size_t distance : {1, 2, 4, 8, 16, 4096}) {
    std::vector<bool> agree;
    for (size_t i = 0; i < kSize; ++i) agree.push_back(up[i] == up[(i + distance) % kSize]);
    EXPECT_NEAR(Share(agree), 0.5, Tolerance(0.5)) << distance;
  }
}

TEST(RoundingTest, AnElementIsRoundedAlikeWhateverSpanItIsIn) {
  const uint64_t beginnings[] = {0, 12345, (uint64_t{1} << 32) - 777, (uint64_t{5} << 32) - 1};
  for (const uint64_t beginning : beginnings) {
    const std::vector<bool> first = RoundedUp(0.5, {1, 1, beginning});
    const std::vector<bool> later = RoundedUp(0.5, {1, 1, beginning + 1001});
    for (size_t i = 1001; i < kSize; ++i) ASSERT_EQ(first[i], later[i - 1001]) << beginning;
  }
}

TEST(RoundingTest, TheRandomBitsAreTheseForever) {
  // A checkpoint's run continues with the same bits under another version: these may not change.
  const std::vector<bool> up = RoundedUp(0.5, {42, 7, 1'000'000});
  uint32_t first = 0;
  for (size_t i = 0; i < 32; ++i) first = first << 1 | up[i];
  EXPECT_EQ(first, 0x9a211ae9u);
}

TEST(RoundingTest, WhatIsNotANumberStaysSoAndInfinityToo) {
  const Numbers gradient(Format::kFloat32, std::vector<double>(4));
  Numbers parameter(Format::kBfloat16, std::vector<double>(4));
  parameter.SetBits(0, 0x7fff);
  parameter.SetBits(1, 0xff81);
  parameter.SetBits(2, 0x7f80);
  parameter.SetBits(3, 0xff80);
  Numbers rounded(Format::kBfloat16, std::vector<double>(4));
  for (uint64_t seed = 0; seed < 100; ++seed) {
    StepSpans spans;
    spans.gradient = gradient.input();
    spans.parameter = parameter.input();
    spans.new_parameter = rounded.output();
    spans.rounding_seed = seed;
    SgdStep({}, 1, spans, {}, {});
    EXPECT_TRUE(std::isnan(rounded.value(0)));
    EXPECT_TRUE(std::isnan(rounded.value(1)));
    EXPECT_EQ(rounded.bits(2), 0x7f80u);
    EXPECT_EQ(rounded.bits(3), 0xff80u);
  }
}

}  // namespace
}  // namespace memtide::optimizer

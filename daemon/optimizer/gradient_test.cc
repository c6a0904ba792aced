#include "daemon/optimizer/gradient.h"

#include <cmath>
#include <random>
#include <vector>

#include "daemon/optimizer/testing/test_spans.h"
#include "gtest/gtest.h"

namespace memtide::optimizer {
namespace {

constexpr Format kFormats[] = {Format::kFloat32, Format::kBfloat16, Format::kFloat16};

std::vector<double> Random(size_t size) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  std::vector<double> values(size);
  for (double& value : values) value = normal(random);
  return values;
}

class GradientTest : public testing::Test {
 protected:
  void TearDown() override { Use(Targets().front()); }
};

TEST_F(GradientTest, EveryFloat16AndEveryBfloat16IsReadAndWrittenRight) {
  for (const Format format : {Format::kFloat16, Format::kBfloat16}) {
    Numbers narrow(format, std::vector<double>(1 << 16));
    for (uint32_t i = 0; i < narrow.size(); ++i) narrow.SetBits(i, i);
    for (const Target& target : Targets()) {
      SCOPED_TRACE(target.name);
      Use(target);
      Numbers wide(Format::kFloat32, std::vector<double>(narrow.size()));
      Numbers back(format, std::vector<double>(narrow.size()));
      const uint64_t not_finite = Scale(narrow.input(), 1, wide.output());
      EXPECT_EQ(Scale(wide.input(), 1, back.output()), not_finite);
      EXPECT_EQ(not_finite, format == Format::kFloat16 ? 2048u : 256u);
      for (uint32_t i = 0; i < narrow.size(); ++i) {
        if (std::isnan(narrow.value(i))) {
          ASSERT_TRUE(std::isnan(wide.value(i)) && std::isnan(back.value(i))) << i;
        } else {
          ASSERT_EQ(wide.value(i), narrow.value(i)) << i;
          ASSERT_EQ(back.bits(i), i);
        }
      }
    }
  }
}

// Around every number of the format, and the middles between them.
TEST_F(GradientTest, RoundingIsToNearestTiesToEven) {
  for (const Format format : {Format::kFloat16, Format::kBfloat16}) {
    std::vector<double> values;
    const uint32_t step = format == Format::kFloat16 ? 1 << 12 : 1 << 15;
    for (uint32_t bits = 0; bits < 0x7f800000; bits += step) {
      if (format == Format::kFloat16 && (bits < 0x32000000 || bits > 0x48000000)) continue;
      for (const uint32_t near : {bits - 1, bits, bits + 1}) {
        const double value = ValueOf(Format::kFloat32, near);
        if (std::isfinite(value)) values.push_back(near % 2 == 0 ? value : -value);
      }
    }
    const Numbers wide(Format::kFloat32, values);
    for (const Target& target : Targets()) {
      SCOPED_TRACE(target.name);
      Use(target);
      Numbers narrow(format, std::vector<double>(values.size()));
      Scale(wide.input(), 1, narrow.output());
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(narrow.value(i), RoundTo(format, values[i])) << values[i];
      }
    }
  }
}

TEST_F(GradientTest, ScalingCountsWhatIsNotFiniteAfterIt) {
  for (const Target& target : Targets()) {
    SCOPED_TRACE(target.name);
    Use(target);
    Numbers gradient(Format::kFloat32, {1, 3e38, -3e38, 1e5, 0.5});
    Numbers same(Format::kFloat32, std::vector<double>(5));
    EXPECT_EQ(Scale(gradient.input(), 2, same.output()), 2u);
    EXPECT_EQ(same.value(0), 2);
    Numbers half(Format::kFloat16, std::vector<double>(5));
    EXPECT_EQ(Scale(gradient.input(), 0.5, half.output()), 2u);
    EXPECT_EQ(half.value(3), RoundTo(Format::kFloat16, 5e4));
    EXPECT_EQ(CountNonFinite(gradient.input()), 0u);
    EXPECT_EQ(CountNonFinite(same.input()), 2u);
    EXPECT_EQ(Scale(gradient.input(), 2, gradient.output()), 2u);
    EXPECT_EQ(gradient.all_bits(), same.all_bits());
  }
}

TEST_F(GradientTest, EveryElementOfAnySizeIsCounted) {
  for (const Format format : kFormats) {
    const uint32_t nan = format == Format::kFloat32 ? 0x7f800001 : 0x7fff;
    for (const Target& target : Targets()) {
      SCOPED_TRACE(target.name);
      Use(target);
      for (size_t size = 1; size < 40; ++size) {
        Numbers gradient(format, std::vector<double>(size), 1);
        EXPECT_EQ(CountNonFinite(gradient.input()), 0u);
        for (size_t i = 0; i < size; ++i) gradient.SetBits(i, nan);
        EXPECT_EQ(CountNonFinite(gradient.input()), size);
      }
    }
  }
}

TEST_F(GradientTest, LargeSpansAreScaledPastTheCaches) {
  const std::vector<double> values = Random(70'003);
  const Numbers gradient(Format::kFloat32, values, 3);
  Numbers scaled(Format::kBfloat16, values, 3);
  Scale(gradient.input(), 4, scaled.output());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(scaled.value(i), RoundTo(Format::kBfloat16, gradient.value(i) * 4)) << i;
  }
  EXPECT_TRUE(scaled.GuardsAreWhole());
}

}  // namespace
}  // namespace memtide::optimizer

// What every algorithm keeps, with every set of options and in every form of data.
#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "daemon/optimizer/testing/reference.h"
#include "daemon/optimizer/testing/test_spans.h"
#include "gtest/gtest.h"

namespace memtide::optimizer {
namespace {

struct Form {
  Format gradient = Format::kFloat32, parameter = Format::kFloat32, state = Format::kFloat32;
  bool has_copy = false;
  Format copy = Format::kFloat32;
};

const Form kSingle;
const Form kForms[] = {
    {Format::kBfloat16, Format::kFloat32, Format::kFloat32, true, Format::kBfloat16},
    {Format::kFloat16, Format::kFloat32, Format::kFloat32, true, Format::kFloat16},
    {Format::kFloat32, Format::kFloat32, Format::kBfloat16},
    {Format::kBfloat16, Format::kFloat32, Format::kBfloat16, true, Format::kFloat16},
    {Format::kBfloat16, Format::kBfloat16, Format::kFloat32},
    {Format::kFloat32, Format::kBfloat16, Format::kBfloat16},
};

std::vector<double> Random(size_t size, uint32_t seed, bool is_square) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> exponent(-3, 1);
  std::vector<double> values(size);
  for (double& value : values) {
    value = normal(random) * std::pow(10, exponent(random));
    if (is_square) value *= value;
  }
  return values;
}

struct Layout {
  size_t size = 0, offset = 0;
  bool in_place = false;
};

// The spans of a step with random numbers, in memory of its own.
struct Step {
  Step(const Algorithm& algorithm, const Form& form, const Layout& layout)
      : gradient(form.gradient, Random(layout.size, 1, false), layout.offset),
        parameter(form.parameter, Random(layout.size, 2, false), layout.offset),
        new_parameter(form.parameter, std::vector<double>(layout.size), layout.offset),
        copy(form.copy, std::vector<double>(form.has_copy ? layout.size : 0), layout.offset),
        has_copy(form.has_copy),
        in_place(layout.in_place) {
    for (size_t s = 0; s < algorithm.states; ++s) {
      old.push_back(std::make_unique<Numbers>(
          form.state, Random(layout.size, 3 + s, algorithm.is_square[s]), layout.offset));
      fresh.push_back(
          std::make_unique<Numbers>(form.state, std::vector<double>(layout.size), layout.offset));
    }
  }

  void Run(const Algorithm& algorithm, size_t begin, size_t end) {
    StepSpans spans;
    spans.gradient = gradient.input(begin, end);
    spans.parameter = parameter.input(begin, end);
    spans.new_parameter = result().output(begin, end);
    if (has_copy) spans.copy = copy.output(begin, end);
    spans.rounding_seed = rounding_seed;
    spans.first_element = first_element + begin;
    spans.gradient_factor = factor;
    std::vector<Input> inputs;
    std::vector<Output> outputs;
    for (size_t s = 0; s < old.size(); ++s) {
      inputs.push_back(old[s]->input(begin, end));
      outputs.push_back(state(s).output(begin, end));
    }
    algorithm.run(number, spans, inputs, outputs);
  }
  void Run(const Algorithm& algorithm) { Run(algorithm, 0, gradient.size()); }

  Numbers& result() { return in_place ? parameter : new_parameter; }
  Numbers& state(size_t s) { return in_place ? *old[s] : *fresh[s]; }

  // All that was written.
  std::vector<std::vector<uint32_t>> bits() {
    std::vector<std::vector<uint32_t>> all = {result().all_bits(), copy.all_bits()};
    for (size_t s = 0; s < old.size(); ++s) all.push_back(state(s).all_bits());
    return all;
  }

  void ExpectGuards() {
    EXPECT_TRUE(result().GuardsAreWhole());
    EXPECT_TRUE(copy.GuardsAreWhole());
    for (size_t s = 0; s < old.size(); ++s) EXPECT_TRUE(state(s).GuardsAreWhole());
  }

  Numbers gradient, parameter, new_parameter, copy;
  std::vector<std::unique_ptr<Numbers>> old, fresh;
  const bool has_copy, in_place;
  uint64_t number = 7, first_element = 0;
  double factor = 1;
  absl::optional<uint64_t> rounding_seed;
};

class StepsTest : public testing::TestWithParam<Algorithm> {
 protected:
  void TearDown() override { Use(Targets().front()); }
};

TEST_P(StepsTest, SinglePrecisionIsWithinTheStatedDistanceOfExactArithmetic) {
  for (const uint64_t number : {uint64_t{1}, uint64_t{2}, uint64_t{1000}, uint64_t{1} << 40}) {
    Step step(GetParam(), kSingle, {1003});
    step.number = number;
    step.Run(GetParam());
    for (size_t i = 0; i < step.gradient.size(); ++i) {
      Element element = {step.gradient.value(i), step.parameter.value(i)};
      for (size_t s = 0; s < step.old.size(); ++s) element.state[s] = step.old[s]->value(i);
      const Exact exact = GetParam().exact(number, element);
      ASSERT_NEAR(step.new_parameter.value(i), exact.parameter, exact.parameter_slack)
          << "element " << i << ", step " << number << ", gradient " << element.gradient;
      for (size_t s = 0; s < step.old.size(); ++s) {
        ASSERT_NEAR(step.fresh[s]->value(i), exact.state[s], exact.state_slack[s])
            << "state " << s << ", element " << i << ", step " << number;
      }
    }
  }
}

// A form computes what single precision does with the same numbers, and rounds once.
TEST_P(StepsTest, EveryFormIsSinglePrecisionRoundedOnce) {
  for (const Form& form : kForms) {
    Step step(GetParam(), form, {301});
    Step wide(GetParam(), kSingle, {301});
    for (size_t i = 0; i < step.gradient.size(); ++i) {
      wide.gradient.SetBits(i, Numbers(Format::kFloat32, {step.gradient.value(i)}).bits(0));
      wide.parameter.SetBits(i, Numbers(Format::kFloat32, {step.parameter.value(i)}).bits(0));
      for (size_t s = 0; s < step.old.size(); ++s) {
        wide.old[s]->SetBits(i, Numbers(Format::kFloat32, {step.old[s]->value(i)}).bits(0));
      }
    }
    step.Run(GetParam());
    wide.Run(GetParam());
    for (size_t i = 0; i < step.gradient.size(); ++i) {
      const double parameter = wide.new_parameter.value(i);
      ASSERT_EQ(step.new_parameter.value(i), RoundTo(form.parameter, parameter)) << i;
      if (form.has_copy) {
        ASSERT_EQ(step.copy.value(i), RoundTo(form.copy, parameter)) << i;
      }
      for (size_t s = 0; s < step.old.size(); ++s) {
        ASSERT_EQ(step.fresh[s]->value(i), RoundTo(form.state, wide.fresh[s]->value(i))) << i;
      }
    }
  }
}

TEST_P(StepsTest, NoSizeOffsetPlaceOrInstructionSetChangesABit) {
  constexpr size_t kMost = 67;
  std::vector<Form> forms(std::begin(kForms), std::end(kForms));
  forms.push_back(kSingle);
  for (const Form& form : forms) {
    Step whole(GetParam(), form, {kMost});
    whole.rounding_seed = 5;
    whole.Run(GetParam());
    for (const Target& target : Targets()) {
      SCOPED_TRACE(target.name);
      Use(target);
      for (const size_t size : {0, 1, 7, 15, 16, 17, 33, 67}) {
        for (const size_t offset : {0, 1, 5}) {
          Step part(GetParam(), form, {kMost, offset, offset == 5});
          part.rounding_seed = 5;
          part.Run(GetParam(), 0, size);
          std::vector<std::vector<uint32_t>> expected = whole.bits(), actual = part.bits();
          for (auto& bits : expected) bits.resize(std::min(bits.size(), size));
          for (auto& bits : actual) bits.resize(std::min(bits.size(), size));
          ASSERT_EQ(actual, expected) << "size " << size << ", offset " << offset;
          part.ExpectGuards();
        }
      }
    }
  }
}

// Large spans are written past the caches, in another loop.
TEST_P(StepsTest, SplittingALargeSpanChangesNoBit) {
  constexpr size_t kSize = 70'001;
  for (const Form& form : {kSingle, kForms[0], kForms[4]}) {
    for (const size_t offset : {0, 3}) {
      Step whole(GetParam(), form, {kSize, offset}), parts(GetParam(), form, {kSize, offset});
      whole.rounding_seed = parts.rounding_seed = 11;
      whole.Run(GetParam());
      size_t begin = 0;
      for (const size_t end : {1, 18, 4096, 69'999, 70'001}) {
        parts.Run(GetParam(), begin, end);
        begin = end;
      }
      ASSERT_EQ(whole.bits(), parts.bits());
      whole.ExpectGuards();
      parts.ExpectGuards();
    }
  }
}

TEST_P(StepsTest, AFactorIsAppliedBeforeAllElse) {
  Step scaled(GetParam(), kSingle, {100}), plain(GetParam(), kSingle, {100});
  scaled.factor = 0.25;
  for (size_t i = 0; i < 100; ++i) {
    const double quarter = plain.gradient.value(i) / 4;
    plain.gradient.SetBits(i, Numbers(Format::kFloat32, {quarter}).bits(0));
  }
  scaled.Run(GetParam());
  plain.Run(GetParam());
  EXPECT_EQ(scaled.bits(), plain.bits());
}

TEST_P(StepsTest, WhatIsNotFiniteStaysWithItsElement) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Target& target : Targets()) {
    SCOPED_TRACE(target.name);
    Use(target);
    Step step(GetParam(), kSingle, {40}), clean(GetParam(), kSingle, {40});
    step.gradient.SetBits(3, 0x7fc00000);
    step.gradient.SetBits(20, Numbers(Format::kFloat32, {infinity}).bits(0));
    step.gradient.SetBits(39, Numbers(Format::kFloat32, {-infinity}).bits(0));
    step.Run(GetParam());
    clean.Run(GetParam());
    // Lion moves by the sign, which NaN has none of; its momentum shows it.
    Numbers& shows = step.old.empty() ? step.new_parameter : *step.fresh[0];
    for (size_t i = 0; i < 40; ++i) {
      if (i == 3 || i == 20 || i == 39) {
        EXPECT_FALSE(std::isfinite(shows.value(i))) << i;
      } else {
        EXPECT_EQ(step.new_parameter.bits(i), clean.new_parameter.bits(i)) << i;
      }
    }
  }
}

TEST_P(StepsTest, DenormalsCount) {
  for (const Target& target : Targets()) {
    SCOPED_TRACE(target.name);
    Use(target);
    Step step(GetParam(), kSingle, {33});
    for (size_t i = 0; i < 33; ++i) {
      step.gradient.SetBits(i, 1 + static_cast<uint32_t>(i * 100));
      step.parameter.SetBits(i, 0x80000007 + static_cast<uint32_t>(i));
      for (const auto& state : step.old) state->SetBits(i, static_cast<uint32_t>(1000 + i));
    }
    step.Run(GetParam());
    for (size_t i = 0; i < 33; ++i) {
      Element element = {step.gradient.value(i), step.parameter.value(i)};
      for (size_t s = 0; s < step.old.size(); ++s) element.state[s] = step.old[s]->value(i);
      const Exact exact = GetParam().exact(step.number, element);
      EXPECT_NEAR(step.new_parameter.value(i), exact.parameter, exact.parameter_slack) << i;
      for (size_t s = 0; s < step.old.size(); ++s) {
        EXPECT_NEAR(step.fresh[s]->value(i), exact.state[s], 2 * exact.state_slack[s]) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StepsTest, testing::ValuesIn(AllAlgorithms()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace memtide::optimizer

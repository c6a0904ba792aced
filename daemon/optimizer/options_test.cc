#include <cmath>
#include <limits>
#include <string>

#include "daemon/optimizer/adagrad.h"
#include "daemon/optimizer/adam.h"
#include "daemon/optimizer/lion.h"
#include "daemon/optimizer/sgd.h"
#include "daemon/optimizer/testing/reference.h"
#include "daemon/optimizer/testing/test_spans.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide::optimizer {
namespace {

using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

// Sets one option to each of the values and expects a refusal that names it.
template <typename Options>
void ExpectRefused(double Options::*option, const std::string& name,
                   const std::vector<double>& values) {
  for (const double value : values) {
    Options options;
    options.*option = value;
    const absl::Status status = Validate(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name << " " << value;
    EXPECT_THAT(std::string(status.message()), HasSubstr("option " + name + " is "));
    EXPECT_THAT(std::string(status.message()), HasSubstr("must be "));
  }
}

const std::vector<double> kNoAmounts = {kNan, kInfinity, -kInfinity, -1e-300, 1e39};
const std::vector<double> kNoRates = {kNan, kInfinity, -0.1, 1, 1.5};

TEST(OptionsTest, DefaultsAreValid) {
  EXPECT_TRUE(Validate(AdamOptions()).ok());
  EXPECT_TRUE(Validate(SgdOptions()).ok());
  EXPECT_TRUE(Validate(AdagradOptions()).ok());
  EXPECT_TRUE(Validate(LionOptions()).ok());
}

TEST(OptionsTest, WhatIsOutOfRangeIsRefusedByName) {
  ExpectRefused(&AdamOptions::lr, "lr", kNoAmounts);
  ExpectRefused(&AdamOptions::beta1, "betas[0]", kNoRates);
  ExpectRefused(&AdamOptions::beta2, "betas[1]", kNoRates);
  ExpectRefused(&AdamOptions::eps, "eps", kNoAmounts);
  ExpectRefused(&AdamOptions::weight_decay, "weight_decay", kNoAmounts);
  ExpectRefused(&SgdOptions::lr, "lr", kNoAmounts);
  ExpectRefused(&SgdOptions::momentum, "momentum", kNoAmounts);
  ExpectRefused(&SgdOptions::dampening, "dampening", {kNan, kInfinity, -1e39});
  ExpectRefused(&SgdOptions::weight_decay, "weight_decay", kNoAmounts);
  ExpectRefused(&AdagradOptions::lr, "lr", kNoAmounts);
  ExpectRefused(&AdagradOptions::lr_decay, "lr_decay", kNoAmounts);
  ExpectRefused(&AdagradOptions::weight_decay, "weight_decay", kNoAmounts);
  ExpectRefused(&AdagradOptions::initial_accumulator_value, "initial_accumulator_value",
                kNoAmounts);
  ExpectRefused(&AdagradOptions::eps, "eps", kNoAmounts);
  ExpectRefused(&LionOptions::lr, "lr", kNoAmounts);
  ExpectRefused(&LionOptions::beta1, "betas[0]", kNoRates);
  ExpectRefused(&LionOptions::beta2, "betas[1]", kNoRates);
  ExpectRefused(&LionOptions::weight_decay, "weight_decay", kNoAmounts);
}

TEST(OptionsTest, NesterovNeedsMomentumWithoutDampening) {
  SgdOptions options;
  options.nesterov = true;
  EXPECT_THAT(std::string(Validate(options).message()), HasSubstr("nesterov"));
  options.momentum = 0.9;
  EXPECT_TRUE(Validate(options).ok());
  options.dampening = 0.1;
  EXPECT_THAT(std::string(Validate(options).message()), HasSubstr("nesterov"));
}

// One step from state that does not exist yet.
std::vector<double> FirstStep(const Algorithm& algorithm) {
  const Numbers gradient(Format::kFloat32, {0.5, -2}), parameter(Format::kFloat32, {1, 1});
  Numbers fresh(Format::kFloat32, {0, 0}), other(Format::kFloat32, {0, 0});
  StepSpans spans;
  spans.gradient = gradient.input();
  spans.parameter = parameter.input();
  Numbers result(Format::kFloat32, {0, 0});
  spans.new_parameter = result.output();
  std::vector<Output> outputs = {fresh.output()};
  if (algorithm.states == 2) outputs.push_back(other.output());
  algorithm.run(1, spans, std::vector<Input>(algorithm.states), outputs);
  return {result.value(0), result.value(1), fresh.value(0), fresh.value(1)};
}

Algorithm Named(const std::string& name) {
  for (const Algorithm& algorithm : AllAlgorithms()) {
    if (algorithm.name == name) return algorithm;
  }
  return {};
}

TEST(OptionsTest, TheFirstDampenedMomentumIsTheGradient) {
  const std::vector<double> step = FirstStep(Named("SgdMomentumDampened"));
  EXPECT_EQ(step[2], 0.5);
  EXPECT_EQ(step[3], -2);
}

TEST(OptionsTest, AbsentMomentsAreZero) {
  const std::vector<double> step = FirstStep(Named("Adam"));
  EXPECT_NEAR(step[0], 1 - 0.01, 1e-6);
  EXPECT_NEAR(step[1], 1 + 0.01, 1e-6);
}

TEST(OptionsTest, AnAbsentAdagradSumBeginsAsTheInitialValue) {
  AdagradOptions options;
  options.initial_accumulator_value = 0.75;
  options.lr = 1;
  options.eps = 0;
  const Numbers gradient(Format::kFloat32, {0.5}), parameter(Format::kFloat32, {3});
  Numbers result(Format::kFloat32, {0}), sum(Format::kFloat32, {0});
  StepSpans spans;
  spans.gradient = gradient.input();
  spans.parameter = parameter.input();
  spans.new_parameter = result.output();
  AdagradStep(options, 1, spans, {}, {sum.output()});
  EXPECT_EQ(sum.value(0), 1);
  EXPECT_EQ(result.value(0), 2.5);
}

TEST(OptionsDeathTest, SpansThatDoNotFitEndTheProcess) {
  Numbers numbers(Format::kFloat32, std::vector<double>(64)), state(Format::kFloat32, {1, 2, 3});
  const Numbers gradient(Format::kFloat32, std::vector<double>(32));
  StepSpans spans;
  spans.gradient = gradient.input();
  spans.parameter = numbers.input(0, 32);
  spans.new_parameter = numbers.output(8, 40);
  EXPECT_DEATH(SgdStep({}, 1, spans, {}, {}), "overlaps an input");
  spans.new_parameter = numbers.output(0, 32);
  EXPECT_DEATH(SgdStep({}, 0, spans, {}, {}), "step >= 1");
  EXPECT_DEATH(LionStep({}, 1, spans, {}, {state.output()}), "3 elements, not 32");
  EXPECT_DEATH(LionStep({}, 1, spans, {}, {numbers.output(16, 48)}), "overlap");
}

}  // namespace
}  // namespace memtide::optimizer

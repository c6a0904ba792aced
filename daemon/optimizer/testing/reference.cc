#include "daemon/optimizer/testing/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "daemon/optimizer/adagrad.h"
#include "daemon/optimizer/adam.h"
#include "daemon/optimizer/lion.h"
#include "daemon/optimizer/sgd.h"

namespace memtide::optimizer {
namespace {

// Below the least normal fp32, distances are absolute.
constexpr double kLeast = std::numeric_limits<float>::min();

// What an underflow takes from the numerator of an update, after its division.
double Underflow(double root) { return std::ldexp(1, -149) / root; }

double Slack(int bits, double magnitude) { return std::ldexp(magnitude + kLeast, -bits); }

Exact ExactAdam(const AdamOptions& options, uint64_t step, const Element& element) {
  const bool decoupled = options.decay == WeightDecay::kDecoupled;
  double gradient = options.maximize ? -element.gradient : element.gradient;
  double old = element.parameter;
  double magnitude = std::abs(gradient);
  if (decoupled) old *= 1 - options.lr * options.weight_decay;
  if (!decoupled) {
    gradient += options.weight_decay * old;
    magnitude += options.weight_decay * std::abs(old);
  }
  const double greatest = std::max(magnitude, std::abs(element.state[0]));
  Exact exact;
  exact.state[0] = options.beta1 * element.state[0] + (1 - options.beta1) * gradient;
  exact.state[1] = options.beta2 * element.state[1] + (1 - options.beta2) * gradient * gradient;
  exact.state[2] = std::max(exact.state[1], element.state[2]);
  const double squared = options.amsgrad ? exact.state[2] : exact.state[1];
  const double root = std::sqrt(squared / ExactCorrection(options.beta2, step)) + options.eps;
  const double rate = options.lr / ExactCorrection(options.beta1, step);
  exact.parameter = old - rate * exact.state[0] / root;
  exact.state_slack[0] = Slack(22, greatest);
  exact.state_slack[1] = Slack(22, std::max(magnitude * magnitude, element.state[1]));
  exact.state_slack[2] = Slack(22, std::max(magnitude * magnitude, exact.state[2]));
  exact.parameter_slack =
      Slack(23, std::abs(element.parameter)) + rate * Slack(20, greatest) / root + Underflow(root);
  // A gradient that nearly cancels its decay is known only to within their own rounding.
  const double lost = Slack(23, magnitude) * magnitude / (squared + kLeast);
  exact.parameter_slack += rate * greatest / root * std::min(1.0, lost);
  return exact;
}

Exact ExactSgd(const SgdOptions& options, const Element& element) {
  double gradient = options.maximize ? -element.gradient : element.gradient;
  double magnitude = std::abs(gradient) + options.weight_decay * std::abs(element.parameter);
  gradient += options.weight_decay * element.parameter;
  Exact exact;
  if (options.momentum != 0) {
    exact.state[0] = options.momentum * element.state[0] + (1 - options.dampening) * gradient;
    magnitude += std::abs(options.momentum * element.state[0]);
    exact.state_slack[0] = Slack(21, magnitude);
    gradient = options.nesterov ? gradient + options.momentum * exact.state[0] : exact.state[0];
    magnitude *= 1 + options.momentum;
  }
  exact.parameter = element.parameter - options.lr * gradient;
  exact.parameter_slack = Slack(21, std::abs(element.parameter) + options.lr * magnitude);
  return exact;
}

Exact ExactAdagrad(const AdagradOptions& options, uint64_t step, const Element& element) {
  double gradient = options.maximize ? -element.gradient : element.gradient;
  const double magnitude = std::abs(gradient) + options.weight_decay * std::abs(element.parameter);
  gradient += options.weight_decay * element.parameter;
  Exact exact;
  exact.state[0] = element.state[0] + gradient * gradient;
  const double root = std::sqrt(exact.state[0]) + options.eps;
  const double rate = options.lr / (1 + static_cast<double>(step - 1) * options.lr_decay);
  exact.parameter = element.parameter - rate * gradient / root;
  exact.state_slack[0] = Slack(22, std::max(magnitude * magnitude, element.state[0]));
  exact.parameter_slack =
      Slack(23, std::abs(element.parameter)) + rate * Slack(20, magnitude) / root + Underflow(root);
  return exact;
}

Exact ExactLion(const LionOptions& options, const Element& element) {
  const double gradient = options.maximize ? -element.gradient : element.gradient;
  const double momentum = element.state[0];
  const double greatest = std::max(std::abs(gradient), std::abs(momentum));
  const double update = options.beta1 * momentum + (1 - options.beta1) * gradient;
  Exact exact;
  exact.state[0] = options.beta2 * momentum + (1 - options.beta2) * gradient;
  exact.state_slack[0] = Slack(22, greatest);
  const double sign = (update > 0) - (update < 0);
  exact.parameter = element.parameter * (1 - options.lr * options.weight_decay) - options.lr * sign;
  exact.parameter_slack = Slack(22, std::abs(element.parameter) + options.lr);
  if (std::abs(update) <= Slack(22, greatest)) exact.parameter_slack += 2 * options.lr;
  return exact;
}

Algorithm Adam(const std::string& name, const AdamOptions& options) {
  Algorithm algorithm;
  algorithm.name = name;
  algorithm.states = options.amsgrad ? 3 : 2;
  algorithm.is_square[1] = algorithm.is_square[2] = true;
  algorithm.run = [options](uint64_t step, const StepSpans& spans, const std::vector<Input>& old,
                            const std::vector<Output>& fresh) {
    AdamStep(options, step, spans, {old[0], old[1], options.amsgrad ? old[2] : Input()},
             {fresh[0], fresh[1], options.amsgrad ? fresh[2] : Output()});
  };
  algorithm.exact = [options](uint64_t step, const Element& element) {
    return ExactAdam(options, step, element);
  };
  return algorithm;
}

Algorithm Sgd(const std::string& name, const SgdOptions& options) {
  Algorithm algorithm;
  algorithm.name = name;
  algorithm.states = options.momentum != 0 ? 1 : 0;
  algorithm.run = [options](uint64_t step, const StepSpans& spans, const std::vector<Input>& old,
                            const std::vector<Output>& fresh) {
    const bool has_momentum = options.momentum != 0;
    SgdStep(options, step, spans, {has_momentum ? old[0] : Input()},
            {has_momentum ? fresh[0] : Output()});
  };
  algorithm.exact = [options](uint64_t, const Element& element) {
    return ExactSgd(options, element);
  };
  return algorithm;
}

Algorithm Adagrad(const std::string& name, const AdagradOptions& options) {
  Algorithm algorithm;
  algorithm.name = name;
  algorithm.states = 1;
  algorithm.is_square[0] = true;
  algorithm.run = [options](uint64_t step, const StepSpans& spans, const std::vector<Input>& old,
                            const std::vector<Output>& fresh) {
    AdagradStep(options, step, spans, {old[0]}, {fresh[0]});
  };
  algorithm.exact = [options](uint64_t step, const Element& element) {
    return ExactAdagrad(options, step, element);
  };
  return algorithm;
}

Algorithm Lion(const std::string& name, const LionOptions& options) {
  Algorithm algorithm;
  algorithm.name = name;
  algorithm.states = 1;
  algorithm.run = [options](uint64_t step, const StepSpans& spans, const std::vector<Input>& old,
                            const std::vector<Output>& fresh) {
    LionStep(options, step, spans, {old[0]}, {fresh[0]});
  };
  algorithm.exact = [options](uint64_t, const Element& element) {
    return ExactLion(options, element);
  };
  return algorithm;
}

void AddAdams(std::vector<Algorithm>* all) {
  for (const bool decoupled : {false, true}) {
    for (const bool amsgrad : {false, true}) {
      for (const bool maximize : {false, true}) {
        for (const double decay : {0.0, 0.1}) {
          AdamOptions options;
          options.lr = 0.01;
          options.decay = decoupled ? WeightDecay::kDecoupled : WeightDecay::kIntoGradient;
          options.amsgrad = amsgrad;
          options.maximize = maximize;
          options.weight_decay = decay;
          all->push_back(Adam(absl::StrCat("Adam", decoupled ? "W" : "", amsgrad ? "Amsgrad" : "",
                                           maximize ? "Maximize" : "", decay != 0 ? "Decay" : ""),
                              options));
        }
      }
    }
  }
  AdamOptions slow;  // The other end of the interpolation.
  slow.beta1 = 0.25;
  slow.beta2 = 0.5;
  slow.eps = 1e-3;
  all->push_back(Adam("AdamSmallBetas", slow));
  slow.beta1 = slow.beta2 = 0;
  all->push_back(Adam("AdamNoBetas", slow));
}

void AddSgds(std::vector<Algorithm>* all) {
  for (const double momentum : {0.0, 0.9}) {
    for (const double dampening : {0.0, 0.3}) {
      for (const bool nesterov : {false, true}) {
        for (const bool maximize : {false, true}) {
          for (const double decay : {0.0, 0.1}) {
            if (nesterov && (momentum == 0 || dampening != 0)) continue;
            const SgdOptions options = {0.05, momentum, dampening, decay, nesterov, maximize};
            all->push_back(
                Sgd(absl::StrCat("Sgd", momentum != 0 ? "Momentum" : "",
                                 dampening != 0 ? "Dampened" : "", nesterov ? "Nesterov" : "",
                                 maximize ? "Maximize" : "", decay != 0 ? "Decay" : ""),
                    options));
          }
        }
      }
    }
  }
}

// What the format's numbers are made of: bits after the point, and the least normal's exponent.
struct Layout {
  int fraction, least_exponent;
  double greatest;
};

Layout LayoutOf(Format format) {
  switch (format) {
    case Format::kFloat32:
      return {23, -126, std::numeric_limits<float>::max()};
    case Format::kBfloat16:
      return {7, -126, std::ldexp(255, 120)};
    case Format::kFloat16:
      break;
  }
  return {10, -14, 65504};
}

}  // namespace

std::vector<Algorithm> AllAlgorithms() {
  std::vector<Algorithm> all;
  AddAdams(&all);
  AddSgds(&all);
  for (const bool maximize : {false, true}) {
    for (const double decay : {0.0, 0.1}) {
      const std::string options =
          absl::StrCat(maximize ? "Maximize" : "", decay != 0 ? "Decay" : "");
      all.push_back(Adagrad("Adagrad" + options, {0.05, 0.01, decay, 0, 1e-10, maximize}));
      all.push_back(Lion("Lion" + options, {0.01, 0.9, 0.99, decay, maximize}));
    }
  }
  return all;
}

double ExactCorrection(double beta, uint64_t step) {
  if (beta == 0) return 1;
  return -std::expm1(static_cast<double>(step) * std::log(beta));
}

double RoundTo(Format format, double value) {
  if (!std::isfinite(value) || value == 0) return value;
  const Layout layout = LayoutOf(format);
  const int exponent = std::max(std::ilogb(value), layout.least_exponent);
  const double unit = std::ldexp(1.0, exponent - layout.fraction);
  const double rounded = std::nearbyint(value / unit) * unit;
  if (std::abs(rounded) <= layout.greatest) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

double ValueOf(Format format, uint32_t bits) {
  if (format != Format::kFloat16) {
    if (format == Format::kBfloat16) bits <<= 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 0x3ff;
  if (exponent == 31) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

}  // namespace memtide::optimizer

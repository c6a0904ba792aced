#include "daemon/optimizer/adam.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "daemon/optimizer/adam.cc"
#include "hwy/foreach_target.h"
// After the line above, which includes this file once for each instruction set.
#include "daemon/optimizer/lanes-inl.h"

#ifndef MEMTIDE_DAEMON_OPTIMIZER_ADAM_CC_
#define MEMTIDE_DAEMON_OPTIMIZER_ADAM_CC_
namespace memtide::optimizer {

struct AdamCall {
  enum State { kMomentum, kVariance, kMaxVariance };
  StepCall step;
  bool amsgrad = false;
  bool adds_decay = false;  // To the gradient.
  float decay = 0, keep = 1;
  float momentum_weight = 0, variance_weight = 0, beta2 = 0;
  float root_correction = 1, eps = 0, minus_step_size = 0;
};

}  // namespace memtide::optimizer
#endif  // MEMTIDE_DAEMON_OPTIMIZER_ADAM_CC_

HWY_BEFORE_NAMESPACE();
namespace memtide::optimizer {
namespace HWY_NAMESPACE {

struct AdamRun {
  const AdamCall& call;
  Chance chance;

  // torch.lerp: from the nearer end.
  template <class D>
  HWY_INLINE hn::Vec<D> Lerp(D d, hn::Vec<D> from, hn::Vec<D> to) const {
    const float weight = call.momentum_weight;
    if (weight < 0.5f) return Fma(hn::Set(d, weight), to - from, from);
    return Fma(hn::Set(d, weight - 1.0f), to - from, to);
  }

  template <class D>
  HWY_INLINE void At(D d, size_t i) const {
    const StepCall& step = call.step;
    auto gradient = LoadFloats(d, step.gradient, i) * hn::Set(d, step.gradient_factor);
    const auto old = LoadFloats(d, step.parameter, i) * hn::Set(d, call.keep);
    if (call.adds_decay) gradient = Fma(old, hn::Set(d, call.decay), gradient);
    const auto momentum = Lerp(d, LoadFloats(d, step.old_state[AdamCall::kMomentum], i), gradient);
    const auto decayed =
        LoadFloats(d, step.old_state[AdamCall::kVariance], i) * hn::Set(d, call.beta2);
    const auto variance = Fma(gradient * hn::Set(d, call.variance_weight), gradient, decayed);
    auto divisor = variance;
    if (call.amsgrad) {
      const auto most = LoadFloats(d, step.old_state[AdamCall::kMaxVariance], i);
      // NaN wins, as in torch.maximum.
      divisor = hn::IfThenElse(hn::Or(most > variance, most != most), most, variance);
      StoreFloats(d, divisor, step.new_state[AdamCall::kMaxVariance], i);
    }
    const auto root = hn::Sqrt(divisor) / hn::Set(d, call.root_correction) + hn::Set(d, call.eps);
    const auto fresh = old + hn::Set(d, call.minus_step_size) * momentum / root;
    StoreFloats(d, momentum, step.new_state[AdamCall::kMomentum], i);
    StoreFloats(d, variance, step.new_state[AdamCall::kVariance], i);
    StoreParameter(d, fresh, step, chance, i);
  }
};

void RunAdam(const AdamCall& call) { ForEachOfStep(call.step, AdamRun{call, {}}); }

}  // namespace HWY_NAMESPACE
}  // namespace memtide::optimizer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/optimizer/option.h"

namespace memtide::optimizer {

HWY_EXPORT(RunAdam);

absl::Status Validate(const AdamOptions& options) {
  MEMTIDE_RETURN_IF_ERROR(ValidateNotNegative("lr", options.lr));
  MEMTIDE_RETURN_IF_ERROR(ValidateDecayRate("betas[0]", options.beta1));
  MEMTIDE_RETURN_IF_ERROR(ValidateDecayRate("betas[1]", options.beta2));
  MEMTIDE_RETURN_IF_ERROR(ValidateNotNegative("eps", options.eps));
  return ValidateNotNegative("weight_decay", options.weight_decay);
}

void AdamStep(const AdamOptions& options, uint64_t step, const StepSpans& spans, const AdamOld& old,
              const AdamNew& fresh) {
  const absl::Status valid = Validate(options);
  MEMTIDE_CHECK(valid.ok()) << valid;
  MEMTIDE_CHECK(spans.gradient.size() == 0 ||
                !(fresh.momentum.is_absent() || fresh.variance.is_absent()));
  MEMTIDE_CHECK(spans.gradient.size() == 0 || options.amsgrad != fresh.max_variance.is_absent());
  AdamCall call;
  call.step = Prepare(step, spans,
                      {{old.momentum, fresh.momentum},
                       {old.variance, fresh.variance},
                       {old.max_variance, fresh.max_variance}});
  if (options.maximize) call.step.gradient_factor = -call.step.gradient_factor;
  call.amsgrad = options.amsgrad;
  if (options.decay == WeightDecay::kDecoupled) {
    call.keep = static_cast<float>(1 - options.lr * options.weight_decay);
  } else {
    call.adds_decay = options.weight_decay != 0;
    call.decay = static_cast<float>(options.weight_decay);
  }
  const double steps = static_cast<double>(step);
  const double correction1 = 1 - std::pow(options.beta1, steps);
  const double correction2 = 1 - std::pow(options.beta2, steps);
  call.momentum_weight = static_cast<float>(1 - options.beta1);
  call.beta2 = static_cast<float>(options.beta2);
  call.variance_weight = static_cast<float>(1 - options.beta2);
  call.root_correction = static_cast<float>(std::pow(correction2, 0.5));
  call.eps = static_cast<float>(options.eps);
  call.minus_step_size = static_cast<float>(-(options.lr / correction1));
  HWY_DYNAMIC_DISPATCH(RunAdam)(call);
}

}  // namespace memtide::optimizer
#endif  // HWY_ONCE

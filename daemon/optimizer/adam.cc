#include "daemon/optimizer/adam.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "daemon/optimizer/adam.cc"
#include "hwy/foreach_target.h"
// After the line above, which includes this file once for each instruction set.
#include "daemon/optimizer/step_tiles-inl.h"

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

// kPlain: without amsgrad and without a decay that is added to the gradient. Testing both per
// vector made the passes of step_tiles-inl.h no faster than tiles.
template <bool kPlain>
struct AdamRun {
  const AdamCall& call;

  // torch.lerp: from the nearer end, without a branch.
  template <class D>
  HWY_INLINE hn::Vec<D> Lerp(D d, hn::Vec<D> from, hn::Vec<D> to) const {
    const auto weight = hn::Set(d, call.momentum_weight);
    const auto near_from = weight < hn::Set(d, 0.5f);
    const auto distance = hn::IfThenElse(near_from, weight, weight - hn::Set(d, 1.0f));
    return Fma(distance, to - from, hn::IfThenElse(near_from, from, to));
  }

  // The greatest variance so far. NaN wins, as in torch.maximum.
  template <class D>
  HWY_INLINE hn::Vec<D> Most(D d, hn::Vec<D> variance, const Places& places, size_t i) const {
    const auto most = hn::LoadU(d, places.old_state[AdamCall::kMaxVariance] + i);
    return hn::IfThenElse(hn::Or(most > variance, most != most), most, variance);
  }

  template <class D, class Put>
  HWY_INLINE void Vector(D d, const Places& places, size_t i, const Put& put) const {
    auto gradient = hn::LoadU(d, places.gradient + i) * hn::Set(d, call.step.gradient_factor);
    // Read only if needed, which saves a pass over a state.
    const auto old = [&] { return hn::LoadU(d, places.parameter + i) * hn::Set(d, call.keep); };
    if (!kPlain && call.adds_decay) gradient = Fma(old(), hn::Set(d, call.decay), gradient);
    const auto momentum =
        Lerp(d, hn::LoadU(d, places.old_state[AdamCall::kMomentum] + i), gradient);
    const auto decayed =
        hn::LoadU(d, places.old_state[AdamCall::kVariance] + i) * hn::Set(d, call.beta2);
    const auto variance = Fma(gradient * hn::Set(d, call.variance_weight), gradient, decayed);
    auto divisor = variance;
    if (!kPlain && call.amsgrad) {
      divisor = Most(d, variance, places, i);
      put.State(d, AdamCall::kMaxVariance, divisor, i);
    }
    const auto root = hn::Sqrt(divisor) / hn::Set(d, call.root_correction) + hn::Set(d, call.eps);
    put.State(d, AdamCall::kMomentum, momentum, i);
    put.State(d, AdamCall::kVariance, variance, i);
    put.Parameter(d, old() + hn::Set(d, call.minus_step_size) * momentum / root, i);
  }
};

void RunAdam(const AdamCall& call) {
  // The compiler may keep the scalars of a local copy in registers: stores to the spans cannot
  // change it.
  const AdamCall local = call;
  if (!local.amsgrad && !local.adds_decay) {
    ForEachTileOfStep(local.step, 2, AdamRun<true>{local});
  } else {
    ForEachTileOfStep(local.step, local.amsgrad ? 3 : 2, AdamRun<false>{local});
  }
}

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
  // Scalars are computed in double and rounded once, as Python computes those that torch gets.
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

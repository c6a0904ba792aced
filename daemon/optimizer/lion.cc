#include "daemon/optimizer/lion.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "daemon/optimizer/lion.cc"
#include "hwy/foreach_target.h"
// After the line above, which includes this file once for each instruction set.
#include "daemon/optimizer/step_tiles-inl.h"

#ifndef MEMTIDE_DAEMON_OPTIMIZER_LION_CC_
#define MEMTIDE_DAEMON_OPTIMIZER_LION_CC_
namespace memtide::optimizer {

struct LionCall {
  StepCall step;
  float keep = 1, beta1 = 0, weight1 = 0, beta2 = 0, weight2 = 0, minus_lr = 0;
};

}  // namespace memtide::optimizer
#endif  // MEMTIDE_DAEMON_OPTIMIZER_LION_CC_

HWY_BEFORE_NAMESPACE();
namespace memtide::optimizer {
namespace HWY_NAMESPACE {

struct LionRun {
  const LionCall& call;

  template <class D, class Put>
  HWY_INLINE void Vector(D d, const Places& places, size_t i, const Put& put) const {
    const auto zero = hn::Zero(d);
    const auto one = hn::Set(d, 1.0f);
    const auto gradient = hn::LoadU(d, places.gradient + i) * hn::Set(d, call.step.gradient_factor);
    const auto decayed = hn::LoadU(d, places.parameter + i) * hn::Set(d, call.keep);
    const auto momentum = hn::LoadU(d, places.old_state[0] + i);
    // Lion (Chen et al., 2023) steps by the sign of an average of beta1, and keeps one of beta2.
    const auto update = Fma(gradient, hn::Set(d, call.weight1), momentum * hn::Set(d, call.beta1));
    // The sign of 0 is 0, as in torch.sign.
    const auto sign =
        hn::IfThenElseZero(update > zero, one) - hn::IfThenElseZero(update < zero, one);
    const auto fresh = Fma(gradient, hn::Set(d, call.weight2), momentum * hn::Set(d, call.beta2));
    put.State(d, 0, fresh, i);
    put.Parameter(d, Fma(sign, hn::Set(d, call.minus_lr), decayed), i);
  }
};

void RunLion(const LionCall& call) {
  // The compiler may keep the scalars of a local copy in registers: stores to the spans cannot
  // change it.
  const LionCall local = call;
  ForEachTileOfStep(local.step, 1, LionRun{local});
}

}  // namespace HWY_NAMESPACE
}  // namespace memtide::optimizer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/optimizer/option.h"

namespace memtide::optimizer {

HWY_EXPORT(RunLion);

absl::Status Validate(const LionOptions& options) {
  MEMTIDE_RETURN_IF_ERROR(ValidateNotNegative("lr", options.lr));
  MEMTIDE_RETURN_IF_ERROR(ValidateDecayRate("betas[0]", options.beta1));
  MEMTIDE_RETURN_IF_ERROR(ValidateDecayRate("betas[1]", options.beta2));
  return ValidateNotNegative("weight_decay", options.weight_decay);
}

void LionStep(const LionOptions& options, uint64_t step, const StepSpans& spans, const LionOld& old,
              const LionNew& fresh) {
  const absl::Status valid = Validate(options);
  MEMTIDE_CHECK(valid.ok()) << valid;
  MEMTIDE_CHECK(spans.gradient.size() == 0 || !fresh.momentum.is_absent());
  LionCall call;
  call.step = Prepare(step, spans, {{old.momentum, fresh.momentum}});
  if (options.maximize) call.step.gradient_factor = -call.step.gradient_factor;
  call.keep = static_cast<float>(1 - options.lr * options.weight_decay);
  call.beta1 = static_cast<float>(options.beta1);
  call.weight1 = static_cast<float>(1 - options.beta1);
  call.beta2 = static_cast<float>(options.beta2);
  call.weight2 = static_cast<float>(1 - options.beta2);
  call.minus_lr = static_cast<float>(-options.lr);
  HWY_DYNAMIC_DISPATCH(RunLion)(call);
}

}  // namespace memtide::optimizer
#endif  // HWY_ONCE

#include "daemon/optimizer/sgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "daemon/optimizer/sgd.cc"
#include "hwy/foreach_target.h"
// After the line above, which includes this file once for each instruction set.
#include "daemon/optimizer/step_tiles-inl.h"

#ifndef MEMTIDE_DAEMON_OPTIMIZER_SGD_CC_
#define MEMTIDE_DAEMON_OPTIMIZER_SGD_CC_
namespace memtide::optimizer {

struct SgdCall {
  StepCall step;
  bool adds_decay = false, has_momentum = false, begins_momentum = false, nesterov = false;
  float decay = 0, momentum = 0, gradient_weight = 1, minus_lr = 0;
};

}  // namespace memtide::optimizer
#endif  // MEMTIDE_DAEMON_OPTIMIZER_SGD_CC_

HWY_BEFORE_NAMESPACE();
namespace memtide::optimizer {
namespace HWY_NAMESPACE {

struct SgdRun {
  const SgdCall& call;

  template <class D, class Put>
  HWY_INLINE void Vector(D d, const Places& places, size_t i, const Put& put) const {
    auto gradient = hn::LoadU(d, places.gradient + i) * hn::Set(d, call.step.gradient_factor);
    const auto old = hn::LoadU(d, places.parameter + i);
    if (call.adds_decay) gradient = Fma(old, hn::Set(d, call.decay), gradient);
    if (call.has_momentum) {
      // As in torch, the first momentum is the gradient itself, without dampening.
      auto momentum = gradient;
      if (!call.begins_momentum) {
        const auto decayed = hn::LoadU(d, places.old_state[0] + i) * hn::Set(d, call.momentum);
        momentum = Fma(gradient, hn::Set(d, call.gradient_weight), decayed);
      }
      put.State(d, 0, momentum, i);
      gradient = call.nesterov ? Fma(momentum, hn::Set(d, call.momentum), gradient) : momentum;
    }
    put.Parameter(d, Fma(gradient, hn::Set(d, call.minus_lr), old), i);
  }
};

void RunSgd(const SgdCall& call) {
  // The compiler may keep the scalars of a local copy in registers: stores to the spans cannot
  // change it.
  const SgdCall local = call;
  ForEachTileOfStep(local.step, local.has_momentum ? 1 : 0, SgdRun{local});
}

}  // namespace HWY_NAMESPACE
}  // namespace memtide::optimizer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/optimizer/option.h"

namespace memtide::optimizer {

HWY_EXPORT(RunSgd);

absl::Status Validate(const SgdOptions& options) {
  MEMTIDE_RETURN_IF_ERROR(ValidateNotNegative("lr", options.lr));
  MEMTIDE_RETURN_IF_ERROR(ValidateNotNegative("momentum", options.momentum));
  MEMTIDE_RETURN_IF_ERROR(ValidateFinite("dampening", options.dampening));
  MEMTIDE_RETURN_IF_ERROR(ValidateNotNegative("weight_decay", options.weight_decay));
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0)) {
    return absl::InvalidArgumentError(
        "optimizer option nesterov is set; it needs a momentum above 0 and a dampening of 0");
  }
  return absl::OkStatus();
}

void SgdStep(const SgdOptions& options, uint64_t step, const StepSpans& spans, const SgdOld& old,
             const SgdNew& fresh) {
  const absl::Status valid = Validate(options);
  MEMTIDE_CHECK(valid.ok()) << valid;
  SgdCall call;
  call.has_momentum = options.momentum != 0;
  MEMTIDE_CHECK(spans.gradient.size() == 0 || call.has_momentum != fresh.momentum.is_absent());
  call.step = Prepare(step, spans, {{old.momentum, fresh.momentum}});
  // A rule that maximizes steps along the gradient; the sign costs nothing in the factor.
  if (options.maximize) call.step.gradient_factor = -call.step.gradient_factor;
  call.begins_momentum = old.momentum.is_absent();
  call.nesterov = options.nesterov;
  call.adds_decay = options.weight_decay != 0;
  call.decay = static_cast<float>(options.weight_decay);
  call.momentum = static_cast<float>(options.momentum);
  call.gradient_weight = static_cast<float>(1 - options.dampening);
  // The negative rate makes the update one fused multiply-add.
  call.minus_lr = static_cast<float>(-options.lr);
  HWY_DYNAMIC_DISPATCH(RunSgd)(call);
}

}  // namespace memtide::optimizer
#endif  // HWY_ONCE

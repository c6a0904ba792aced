#include "daemon/optimizer/adagrad.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "daemon/optimizer/adagrad.cc"
#include "hwy/foreach_target.h"
// After the line above, which includes this file once for each instruction set.
#include "daemon/optimizer/step_tiles-inl.h"

#ifndef MEMTIDE_DAEMON_OPTIMIZER_ADAGRAD_CC_
#define MEMTIDE_DAEMON_OPTIMIZER_ADAGRAD_CC_
namespace memtide::optimizer {

struct AdagradCall {
  StepCall step;
  bool adds_decay = false;
  float decay = 0, eps = 0, minus_rate = 0;
};

}  // namespace memtide::optimizer
#endif  // MEMTIDE_DAEMON_OPTIMIZER_ADAGRAD_CC_

HWY_BEFORE_NAMESPACE();
namespace memtide::optimizer {
namespace HWY_NAMESPACE {

struct AdagradRun {
  const AdagradCall& call;

  template <class D, class Put>
  HWY_INLINE void Vector(D d, const Places& places, size_t i, const Put& put) const {
    auto gradient = hn::LoadU(d, places.gradient + i) * hn::Set(d, call.step.gradient_factor);
    const auto old = hn::LoadU(d, places.parameter + i);
    if (call.adds_decay) gradient = Fma(old, hn::Set(d, call.decay), gradient);
    const auto sum = Fma(gradient, gradient, hn::LoadU(d, places.old_state[0] + i));
    const auto root = hn::Sqrt(sum) + hn::Set(d, call.eps);
    put.State(d, 0, sum, i);
    put.Parameter(d, old + hn::Set(d, call.minus_rate) * gradient / root, i);
  }
};

void RunAdagrad(const AdagradCall& call) {
  // The compiler may keep the scalars of a local copy in registers: stores to the spans cannot
  // change it.
  const AdagradCall local = call;
  ForEachTileOfStep(local.step, 1, AdagradRun{local});
}

}  // namespace HWY_NAMESPACE
}  // namespace memtide::optimizer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/optimizer/option.h"

namespace memtide::optimizer {

HWY_EXPORT(RunAdagrad);

absl::Status Validate(const AdagradOptions& options) {
  MEMTIDE_RETURN_IF_ERROR(ValidateNotNegative("lr", options.lr));
  MEMTIDE_RETURN_IF_ERROR(ValidateNotNegative("lr_decay", options.lr_decay));
  MEMTIDE_RETURN_IF_ERROR(ValidateNotNegative("weight_decay", options.weight_decay));
  MEMTIDE_RETURN_IF_ERROR(
      ValidateNotNegative("initial_accumulator_value", options.initial_accumulator_value));
  return ValidateNotNegative("eps", options.eps);
}

void AdagradStep(const AdagradOptions& options, uint64_t step, const StepSpans& spans,
                 const AdagradOld& old, const AdagradNew& fresh) {
  const absl::Status valid = Validate(options);
  MEMTIDE_CHECK(valid.ok()) << valid;
  MEMTIDE_CHECK(spans.gradient.size() == 0 || !fresh.sum.is_absent());
  AdagradCall call;
  const auto initial = static_cast<float>(options.initial_accumulator_value);
  call.step = Prepare(step, spans, {{old.sum, fresh.sum, initial}});
  if (options.maximize) call.step.gradient_factor = -call.step.gradient_factor;
  call.adds_decay = options.weight_decay != 0;
  call.decay = static_cast<float>(options.weight_decay);
  call.eps = static_cast<float>(options.eps);
  // The first step has the full rate, as in torch.optim.Adagrad.
  const double slower = 1 + static_cast<double>(step - 1) * options.lr_decay;
  call.minus_rate = static_cast<float>(-(options.lr / slower));
  HWY_DYNAMIC_DISPATCH(RunAdagrad)(call);
}

}  // namespace memtide::optimizer
#endif  // HWY_ONCE

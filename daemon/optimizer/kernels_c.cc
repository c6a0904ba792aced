#include "daemon/optimizer/kernels_c.h"

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "daemon/optimizer/adagrad.h"
#include "daemon/optimizer/adam.h"
#include "daemon/optimizer/lion.h"
#include "daemon/optimizer/sgd.h"
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace memtide::optimizer {
namespace {

Input ToInput(const memtide_optimizer_span& span, uint64_t elements) {
  return Input(span.data, elements, static_cast<Format>(span.format));
}

Output ToOutput(const memtide_optimizer_span& span, uint64_t elements) {
  return Output(span.data, elements, static_cast<Format>(span.format));
}

// A step of the algorithm with these options, if they are valid.
template <typename Options, typename Old, typename New>
absl::Status Run(const Options& options,
                 void (*run)(const Options&, uint64_t, const StepSpans&, const Old&, const New&),
                 const memtide_optimizer_step& step, const Old& old, const New& fresh) {
  const absl::Status valid = Validate(options);
  if (!valid.ok()) return valid;
  StepSpans spans;
  spans.gradient = ToInput(step.gradient, step.elements);
  spans.parameter = ToInput(step.parameter, step.elements);
  spans.new_parameter = ToOutput(step.new_parameter, step.elements);
  spans.copy = ToOutput(step.copy, step.elements);
  spans.gradient_factor = step.gradient_factor;
  // The C interface has no optional values: zero means that nothing is rounded stochastically.
  if (step.rounding_seed != 0) spans.rounding_seed = step.rounding_seed;
  spans.first_element = step.first_element;
  run(options, step.step, spans, old, fresh);
  return absl::OkStatus();
}

absl::Status Dispatch(const memtide_optimizer_step& step) {
  const auto old = [&step](int i) { return ToInput(step.old_state[i], step.elements); };
  const auto fresh = [&step](int i) { return ToOutput(step.new_state[i], step.elements); };
  const bool maximize = step.maximize != 0;
  switch (step.algorithm) {
    case MEMTIDE_ADAM:
    case MEMTIDE_ADAMW: {
      AdamOptions options = {step.lr, step.beta1, step.beta2, step.eps, step.weight_decay};
      if (step.algorithm == MEMTIDE_ADAMW) options.decay = WeightDecay::kDecoupled;
      options.amsgrad = step.amsgrad != 0;
      options.maximize = maximize;
      return Run(options, AdamStep, step, AdamOld{old(0), old(1), old(2)},
                 AdamNew{fresh(0), fresh(1), fresh(2)});
    }
    case MEMTIDE_SGD: {
      const SgdOptions options = {step.lr,           step.momentum,      step.dampening,
                                  step.weight_decay, step.nesterov != 0, maximize};
      return Run(options, SgdStep, step, SgdOld{old(0)}, SgdNew{fresh(0)});
    }
    case MEMTIDE_ADAGRAD: {
      const AdagradOptions options = {step.lr,           step.lr_decay,
                                      step.weight_decay, step.initial_accumulator_value,
                                      step.eps,          maximize};
      return Run(options, AdagradStep, step, AdagradOld{old(0)}, AdagradNew{fresh(0)});
    }
    case MEMTIDE_LION: {
      const LionOptions options = {step.lr, step.beta1, step.beta2, step.weight_decay, maximize};
      return Run(options, LionStep, step, LionOld{old(0)}, LionNew{fresh(0)});
    }
    default:
      return absl::InvalidArgumentError("no such algorithm");
  }
}

}  // namespace
}  // namespace memtide::optimizer

int memtide_optimizer_run(const memtide_optimizer_step* step, char* why, uint64_t why_size) {
  const absl::Status status = memtide::optimizer::Dispatch(*step);
  if (status.ok()) return 0;
  // snprintf() cuts the message to the caller's buffer.
  std::snprintf(why, why_size, "%s", std::string(status.message()).c_str());
  return 1;
}

const char* memtide_optimizer_target() {
  // Highway numbers better targets lower, so the lowest bit is the one that is dispatched to.
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);
}

// Stochastic gradient descent with momentum, dampening and Nesterov's look ahead (Sutskever et al.,
// ICML 2013, "On the importance of initialization and momentum in deep learning"): torch.optim.SGD.
//
// Spans, formats, alignment, threads and what decides a result's bits: spans.h. The functions are
// pure and run in the calling thread; to use more threads, split the spans.
//
// The order of operations is that of torch's single-tensor implementation on a CPU, each in fp32,
// with fused multiply-adds where torch has them. Held by tests: for fp32, one step differs from
// exact arithmetic by at most 2^-21 of the greatest term in each sum (gradient, weight_decay times
// parameter, momentum; for the parameter: itself and lr times the others), and 200 steps differ
// from torch's by at most 1e-6 of the parameter and of the way it could have gone. With torch
// 2.12 on a CPU with AVX2 they do not differ at all.
#ifndef MEMTIDE_DAEMON_OPTIMIZER_SGD_H_
#define MEMTIDE_DAEMON_OPTIMIZER_SGD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "daemon/optimizer/spans.h"

namespace memtide::optimizer {

// torch.optim.SGD's names and defaults.
struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  // L2: added to the gradient.
  bool nesterov = false;
  bool maximize = false;  // Follows the gradient, not its opposite.
};

// torch's momentum_buffer: fp32 or bf16; with momentum only. An absent old one makes this the first
// step of its elements: the buffer becomes the gradient, without dampening.
struct SgdOld {
  Input momentum;
};
struct SgdNew {
  Output momentum;
};

// INVALID_ARGUMENT, with the option, its value and what is allowed, for what torch refuses and for
// what is not finite.
absl::Status Validate(const SgdOptions& options);

// One step, the `step`-th, from 1 on. The number only affects stochastic rounding.
// REQUIRES: options that are valid, spans as spans.h says, a buffer where there is momentum.
void SgdStep(const SgdOptions& options, uint64_t step, const StepSpans& spans, const SgdOld& old,
             const SgdNew& fresh);

}  // namespace memtide::optimizer

#endif  // MEMTIDE_DAEMON_OPTIMIZER_SGD_H_

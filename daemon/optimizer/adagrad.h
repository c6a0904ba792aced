// Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011): torch.optim.Adagrad on dense gradients.
//
// Spans, formats, alignment, threads and what decides a result's bits: spans.h. The functions are
// pure and run in the calling thread; to use more threads, split the spans.
//
// The order of operations is that of torch's single-tensor implementation on a CPU, each in fp32,
// with fused multiply-adds where torch has them; scalars are computed in double. Held by tests: for
// fp32, one step differs from exact arithmetic by at most 2^-22 of the sum, and in the parameter by
// 2^-23 of it and 2^-20 of lr times the ratio that is applied; 200 steps differ from torch's by at
// most 1e-6 of the parameter and of the way it could have gone. With torch 2.12 on a CPU with AVX2
// the sums do not differ at all, and parameters in the last bit: torch's square root (MKL's) is not
// always the nearest number, and ours is.
#ifndef MEMTIDE_DAEMON_OPTIMIZER_ADAGRAD_H_
#define MEMTIDE_DAEMON_OPTIMIZER_ADAGRAD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "daemon/optimizer/spans.h"

namespace memtide::optimizer {

// torch.optim.Adagrad's names and defaults.
struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;      // lr is divided by 1 + (step - 1) * lr_decay.
  double weight_decay = 0;  // L2: added to the gradient.
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;  // Follows the gradient, not its opposite.
};

// torch's sum: fp32 or bf16. An absent old one is initial_accumulator_value throughout.
struct AdagradOld {
  Input sum;
};
struct AdagradNew {
  Output sum;
};

// INVALID_ARGUMENT, with the option, its value and what is allowed, for what torch refuses and for
// what is not finite.
absl::Status Validate(const AdagradOptions& options);

// One step, the `step`-th, from 1 on.
// REQUIRES: options that are valid, spans as spans.h says, an output for the sum.
void AdagradStep(const AdagradOptions& options, uint64_t step, const StepSpans& spans,
                 const AdagradOld& old, const AdagradNew& fresh);

}  // namespace memtide::optimizer

#endif  // MEMTIDE_DAEMON_OPTIMIZER_ADAGRAD_H_

// Adam (Kingma and Ba, arXiv 1412.6980), AdamW (Loshchilov and Hutter, arXiv 1711.05101) and their
// amsgrad variants (Reddi et al., arXiv 1904.09237): torch.optim.Adam and AdamW.
//
// Spans, formats, alignment, threads and what decides a result's bits: spans.h. The functions are
// pure and run in the calling thread; to use more threads, split the spans.
//
// The order of operations is that of torch's single-tensor implementation on a CPU, each in fp32,
// with fused multiply-adds where torch has them; scalars are computed in double, so that the bias
// corrections are right at any step below 2^53 (torch counts steps in fp32, which ends at 2^24).
// Held by tests: for fp32, one step differs from exact arithmetic by at most
//   2^-22 of the moments' larger term (old moment or gradient; for the variance, their squares),
//   2^-23 of the parameter and 2^-20 of lr times the ratio that is applied, in the parameter;
// and 200 steps differ from torch's by at most 1e-6 of the parameter and of the way it could have
// gone. With torch 2.12 on a CPU with AVX2 the moments do not differ at all, and parameters in the
// last bit: torch's square root (MKL's) is not always the nearest number, and ours is. A result in
// a 2-byte format is the fp32 result, rounded: what torch's fused kernel does with bf16, bit for
// bit.
#ifndef MEMTIDE_DAEMON_OPTIMIZER_ADAM_H_
#define MEMTIDE_DAEMON_OPTIMIZER_ADAM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "daemon/optimizer/spans.h"

namespace memtide::optimizer {

enum class WeightDecay {
  kIntoGradient,  // L2: added to the gradient. torch.optim.Adam.
  kDecoupled,     // Shrinks the parameter itself. torch.optim.AdamW.
};

// torch.optim.Adam's names and defaults. AdamW's default weight_decay is 0.01.
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  WeightDecay decay = WeightDecay::kIntoGradient;
  bool amsgrad = false;   // Divides by the greatest variance so far.
  bool maximize = false;  // Follows the gradient, not its opposite.
};

// torch's exp_avg, exp_avg_sq and max_exp_avg_sq: fp32 or bf16. The last with amsgrad only. Absent
// ones of `old` are zeros, as before the first step.
struct AdamOld {
  Input momentum, variance, max_variance;
};
struct AdamNew {
  Output momentum, variance, max_variance;
};

// INVALID_ARGUMENT, with the option, its value and what is allowed, for what torch refuses and for
// what is not finite.
absl::Status Validate(const AdamOptions& options);

// One step, the `step`-th, from 1 on.
// REQUIRES: options that are valid, spans as spans.h says, all states that the options need.
void AdamStep(const AdamOptions& options, uint64_t step, const StepSpans& spans, const AdamOld& old,
              const AdamNew& fresh);

}  // namespace memtide::optimizer

#endif  // MEMTIDE_DAEMON_OPTIMIZER_ADAM_H_

// The kernels through C, for tests and benchmarks in Python: one call for all algorithms.
//
// No release contains it, and it may change at any time. The caller owns the spans (see spans.h).
// Thread-safe.
#ifndef MEMTIDE_DAEMON_OPTIMIZER_KERNELS_C_H_
#define MEMTIDE_DAEMON_OPTIMIZER_KERNELS_C_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MEMTIDE_ADAM, MEMTIDE_ADAMW, MEMTIDE_SGD, MEMTIDE_ADAGRAD, MEMTIDE_LION };
enum { MEMTIDE_FLOAT32, MEMTIDE_BFLOAT16, MEMTIDE_FLOAT16 };

// `data` null: absent.
struct memtide_optimizer_span {
  void* data;
  int32_t format;
};

struct memtide_optimizer_step {
  int32_t algorithm;
  int32_t amsgrad, maximize, nesterov;
  double lr, beta1, beta2, eps, weight_decay;
  double momentum, dampening;
  double lr_decay, initial_accumulator_value;
  uint64_t step, elements;
  double gradient_factor;
  struct memtide_optimizer_span gradient, parameter, new_parameter, copy;
  struct memtide_optimizer_span old_state[3], new_state[3];
  uint64_t rounding_seed, first_element;  // Seed 0: rounds to nearest.
};

// Makes the step and returns 0; or makes none, writes why (with a terminating zero, cut to the
// size) and returns 1: the options were not valid.
int memtide_optimizer_run(const struct memtide_optimizer_step* step, char* why, uint64_t why_size);

// The name of the instruction set that the kernels use on this CPU.
const char* memtide_optimizer_target(void);

#ifdef __cplusplus
}
#endif

#endif  // MEMTIDE_DAEMON_OPTIMIZER_KERNELS_C_H_

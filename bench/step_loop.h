// StepLoop is the limit of an optimizer's step: a loop that reads and writes the same arrays as
// AdamW, and only adds.
//
// It shares no code with daemon/optimizer, so that a mistake there cannot slow the limit as well.
// It uses the CPU's widest vectors and writes past the caches, in bursts. None of fourteen loops
// that were tried is faster; the plain one, which takes a cache line of each array by turns, takes
// twice as long. Thread-safe.
#ifndef MEMTIDE_BENCH_STEP_LOOP_H_
#define MEMTIDE_BENCH_STEP_LOOP_H_

#include <cstddef>
#include <cstdint>

namespace memtide {

// The arrays of a step, each aligned to 64 bytes.
struct StepArrays {
  const void* gradient = nullptr;  // fp32, or bf16 if `copy` is set.
  const float* parameter = nullptr;
  const float* momentum = nullptr;
  const float* variance = nullptr;
  float* new_parameter = nullptr;
  float* new_momentum = nullptr;
  float* new_variance = nullptr;
  uint16_t* copy = nullptr;  // bf16, or null.
};

// REQUIRES: `begin` and `end` are multiples of 256.
void StepLoop(const StepArrays& arrays, size_t begin, size_t end);

}  // namespace memtide

#endif  // MEMTIDE_BENCH_STEP_LOOP_H_

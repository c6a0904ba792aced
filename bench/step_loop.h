// StepLoop: the limit of an optimizer's step: a loop that reads and writes what AdamW does, and
// only adds.
//
// Written for the benchmark and on purpose apart from daemon/optimizer, so that a mistake there
// cannot slow the limit as well. The widest vectors that the CPU has, written past the caches, in
// bursts: no slower than any of fourteen loops that were tried, and twice as fast as the plain one
// that takes a line of each array by turns. Thread-safe.
#ifndef MEMTIDE_BENCH_STEP_LOOP_H_
#define MEMTIDE_BENCH_STEP_LOOP_H_

#include <cstddef>
#include <cstdint>

namespace memtide {

// Arrays of a step, each aligned to 64 bytes.
struct StepArrays {
  const void* gradient = nullptr;  // fp32, or bf16 where there is a copy.
  const float* parameter = nullptr;
  const float* momentum = nullptr;
  const float* variance = nullptr;
  float* new_parameter = nullptr;
  float* new_momentum = nullptr;
  float* new_variance = nullptr;
  uint16_t* copy = nullptr;  // bf16, or none.
};

// REQUIRES: elements [begin, end) in multiples of 256.
void StepLoop(const StepArrays& arrays, size_t begin, size_t end);

}  // namespace memtide

#endif  // MEMTIDE_BENCH_STEP_LOOP_H_

// The kernels' arguments: checked spans as bare pointers, and scalars.
//
// Internal to this package. Thread-safe: values and pure functions.
#ifndef MEMTIDE_DAEMON_OPTIMIZER_KERNEL_H_
#define MEMTIDE_DAEMON_OPTIMIZER_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "daemon/optimizer/spans.h"

namespace memtide::optimizer {

// Spans of fewer elements are written with ordinary stores: what they hold may be wanted soon.
inline constexpr size_t kStreamedElements = size_t{1} << 16;
// Streamed spans are aligned to as many elements: a cache line of fp32.
inline constexpr size_t kLineElements = 16;

// Without data, every element reads as `initial`.
struct Source {
  const void* data = nullptr;
  Format format = Format::kFloat32;
  float initial = 0;
};

// Without data, nothing is written.
struct Sink {
  void* data = nullptr;
  Format format = Format::kFloat32;
  bool streamed = false;  // Written past the caches.
};

struct Range {
  size_t size = 0;
  // Whether any sink is streamed. Then element i of each is aligned to kLineElements elements (a
  // line of fp32, half a line of others) where (i + phase) is a multiple of that.
  bool streams = false;
  size_t phase = 0;
};

// A state of the algorithm: what it was, and where it goes.
struct State {
  Input old;
  Output fresh;
  float initial = 0;  // The value of each element of an absent `old`.
};

// Two 32-bit keys for the random bits of 2^32 consecutive elements.
struct RoundingKeys {
  uint32_t first = 0, second = 0;
};
RoundingKeys KeysFor(uint64_t seed, uint64_t step, uint64_t index_high);

// Checks that spans have `size` elements, are aligned, and overlap only as spans.h allows. Ends the
// process otherwise.
void CheckSpans(const std::vector<Input>& inputs, const std::vector<Output>& outputs, size_t size);

// Decides which sinks are streamed: those of large spans that share no memory with an input, and
// whose cache lines begin at the same elements as the first one's. `outputs` are their addresses.
void DecideStreaming(const std::vector<Input>& inputs, const std::vector<Output>& outputs,
                     const std::vector<Sink*>& sinks, Range* range);

// The arguments that all steps have in common.
struct StepCall {
  Range range;
  Source gradient, parameter;
  Sink new_parameter, copy;
  float gradient_factor = 1;
  bool stochastic = false;
  uint64_t seed = 0, step = 0, first_element = 0;
  // The algorithm's own, in its order.
  static constexpr size_t kStates = 3;
  Source old_state[kStates];
  Sink new_state[kStates];
};

// REQUIRES: spans as StepSpans describes them, all of one size; step >= 1; at most kStates states,
// in fp32 or bf16, each written in the format that it is read in (a state without output is not
// kept). Breaking this is a mistake of ours and ends the process.
StepCall Prepare(uint64_t step, const StepSpans& spans, std::initializer_list<State> states);

}  // namespace memtide::optimizer

#endif  // MEMTIDE_DAEMON_OPTIMIZER_KERNEL_H_

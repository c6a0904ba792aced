#include "daemon/optimizer/kernel.h"

#include <cmath>
#include <vector>

#include "base/check.h"

namespace memtide::optimizer {
namespace {

void CheckAligned(const void* data, Format format) {
  const size_t width = BytesPerElement(format);
  MEMTIDE_CHECK(reinterpret_cast<uintptr_t>(data) % width == 0)
      << data << " is not aligned to " << width << " bytes";
}

// Where a span lies.
struct Extent {
  uintptr_t begin = 0;
  size_t elements = 0, width = 0;

  uintptr_t end() const { return begin + elements * width; }
};

template <typename Span>
Extent ExtentOf(const Span& span) {
  return {reinterpret_cast<uintptr_t>(span.data()), span.size(), BytesPerElement(span.format())};
}

bool AreApart(const Extent& a, const Extent& b) { return a.end() <= b.begin || b.end() <= a.begin; }

void CheckOutput(const Output& output, const std::vector<Input>& inputs,
                 const std::vector<Output>& outputs) {
  const Extent extent = ExtentOf(output);
  for (const Input& input : inputs) {
    if (input.is_absent()) continue;
    const Extent other = ExtentOf(input);
    // An update in place is right, because each element is read before it is written. Any other
    // overlap would read new values.
    const bool is_same = extent.begin == other.begin && extent.width == other.width;
    MEMTIDE_CHECK(is_same || AreApart(extent, other))
        << "an output of " << output.size() << " elements at " << output.data()
        << " overlaps an input at " << input.data();
  }
  for (const Output& other : outputs) {
    if (other.is_absent() || &other == &output) continue;
    MEMTIDE_CHECK(AreApart(extent, ExtentOf(other)))
        << "outputs at " << output.data() << " and " << other.data() << " overlap";
  }
}

size_t PhaseOf(const Sink& sink) {
  return reinterpret_cast<uintptr_t>(sink.data) / BytesPerElement(sink.format) % kLineElements;
}

// An output that is updated in place is in the cache already, so streaming it would not save a
// read.
bool IsRead(const Output& output, const std::vector<Input>& inputs) {
  for (const Input& input : inputs) {
    if (input.data() == output.data()) return true;
  }
  return false;
}

uint64_t Mix(uint64_t x) {  // SplitMix64's.
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

void CheckSpans(const std::vector<Input>& inputs, const std::vector<Output>& outputs, size_t size) {
  for (const Input& input : inputs) {
    if (input.is_absent()) continue;
    MEMTIDE_CHECK(input.size() == size) << input.size() << " elements, not " << size;
    CheckAligned(input.data(), input.format());
  }
  for (const Output& output : outputs) {
    if (output.is_absent()) continue;
    MEMTIDE_CHECK(output.size() == size) << output.size() << " elements, not " << size;
    CheckAligned(output.data(), output.format());
    CheckOutput(output, inputs, outputs);
  }
}

void DecideStreaming(const std::vector<Input>& inputs, const std::vector<Output>& outputs,
                     const std::vector<Sink*>& sinks, Range* range) {
  range->streams = false;
  range->phase = PhaseOf(*sinks[0]);
  for (size_t i = 0; i < outputs.size(); ++i) {
    Sink& sink = *sinks[i];
    // The tiles follow the cache lines of the first sink. In a sink of another phase they would end
    // in the middle of a line, and a line that is streamed in two parts is written to memory twice.
    sink.streamed = range->size >= kStreamedElements && sink.data != nullptr &&
                    PhaseOf(sink) == range->phase && !IsRead(outputs[i], inputs);
    range->streams |= sink.streamed;
  }
}

size_t BytesPerElement(Format format) { return format == Format::kFloat32 ? 4 : 2; }

RoundingKeys KeysFor(uint64_t seed, uint64_t step, uint64_t index_high) {
  // 2^64 divided by the golden ratio, the increment of SplitMix64.
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  // Mix maps 0 to 0, so constants keep the seed, the step and the index apart where they are 0.
  const uint64_t key = Mix(Mix(Mix(seed + kGolden) ^ (step * kGolden)) + index_high + 1);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

StepCall Prepare(uint64_t step, const StepSpans& spans, std::initializer_list<State> states) {
  MEMTIDE_CHECK(step >= 1);
  const auto factor = static_cast<float>(spans.gradient_factor);
  // A finite double may be infinite in fp32.
  MEMTIDE_CHECK(std::isfinite(factor)) << spans.gradient_factor;
  MEMTIDE_CHECK(states.size() <= StepCall::kStates) << states.size();
  const size_t size = spans.gradient.size();
  MEMTIDE_CHECK(size == 0 || !(spans.gradient.is_absent() || spans.parameter.is_absent() ||
                               spans.new_parameter.is_absent()));
  MEMTIDE_CHECK(spans.parameter.format() != Format::kFloat16 &&
                spans.parameter.format() == spans.new_parameter.format());

  std::vector<Input> inputs = {spans.gradient, spans.parameter};
  std::vector<Output> outputs = {spans.new_parameter, spans.copy};
  StepCall call;
  call.gradient = {spans.gradient.data(), spans.gradient.format()};
  call.parameter = {spans.parameter.data(), spans.parameter.format()};
  call.new_parameter = {spans.new_parameter.data(), spans.new_parameter.format()};
  call.copy = {spans.copy.data(), spans.copy.format()};
  size_t n = 0;
  for (const State& state : states) {
    MEMTIDE_CHECK(state.fresh.format() != Format::kFloat16 &&
                  (state.old.is_absent() || state.old.format() == state.fresh.format()));
    inputs.push_back(state.old);
    outputs.push_back(state.fresh);
    call.old_state[n] = {state.old.data(), state.old.format(), state.initial};
    call.new_state[n] = {state.fresh.data(), state.fresh.format()};
    ++n;
  }
  CheckSpans(inputs, outputs, size);

  call.range.size = size;
  std::vector<Sink*> sinks = {&call.new_parameter, &call.copy};
  for (Sink& sink : call.new_state) sinks.push_back(&sink);
  DecideStreaming(inputs, outputs, sinks, &call.range);
  call.gradient_factor = factor;
  // An fp32 parameter has no bits to lose, so only bf16 is rounded stochastically.
  call.stochastic =
      spans.rounding_seed.has_value() && spans.parameter.format() == Format::kBfloat16;
  call.seed = spans.rounding_seed.value_or(0);
  call.step = step;
  call.first_element = spans.first_element;
  return call;
}

}  // namespace memtide::optimizer

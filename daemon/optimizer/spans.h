// Spans of numbers in one of three formats, and what a step of every algorithm is given.
//
// Input and Output point at memory that the caller owns and keeps for the length of a call. Sizes
// and indices count elements. Data is aligned to its element (2 or 4 bytes) and no more is needed.
// Steps run fastest when all spans lie at the same offset from a multiple of 64 bytes (2-byte
// formats: of 32), because only then can new values be written past the caches.
//
// A step is out of place: it reads old spans and writes new ones. An output may be the same memory
// as an input of equal element size, beginning at the same address (the step is then in place, or
// a parameter takes the place of its gradient); any other overlap is refused. Until the step has
// returned, what lies in an output is undefined.
//
// Every result depends on its own element only, and on nothing that follows from how the elements
// are split into spans, on which thread runs, or on the instruction set: the same bits everywhere.
// Two things are assumed of the calling thread: rounding to nearest, and denormals not flushed to
// zero, both as a thread has them at its start.
#ifndef MEMTIDE_DAEMON_OPTIMIZER_SPANS_H_
#define MEMTIDE_DAEMON_OPTIMIZER_SPANS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/optional.h"
#include "absl/types/span.h"

namespace memtide::optimizer {

enum class Format { kFloat32, kBfloat16, kFloat16 };

// Numbers by their bits; IEEE binary16 and the upper half of binary32.
struct Float16 {
  uint16_t bits = 0;
};
struct Bfloat16 {
  uint16_t bits = 0;
};

size_t BytesPerElement(Format format);

// Read only. By default no span at all: state that does not exist yet, or that is not kept.
class Input {
 public:
  Input() = default;
  Input(absl::Span<const float> span) : Input(span.data(), span.size(), Format::kFloat32) {}
  Input(absl::Span<const Bfloat16> span) : Input(span.data(), span.size(), Format::kBfloat16) {}
  Input(absl::Span<const Float16> span) : Input(span.data(), span.size(), Format::kFloat16) {}
  Input(const void* data, size_t size, Format format) : data_(data), size_(size), format_(format) {}

  const void* data() const { return data_; }
  size_t size() const { return size_; }
  Format format() const { return format_; }
  bool is_absent() const { return data_ == nullptr; }

 private:
  const void* data_ = nullptr;
  size_t size_ = 0;
  Format format_ = Format::kFloat32;
};

// Written only. Numbers are rounded to nearest, ties to even; a NaN stays one (quiet).
class Output {
 public:
  Output() = default;
  Output(absl::Span<float> span) : Output(span.data(), span.size(), Format::kFloat32) {}
  Output(absl::Span<Bfloat16> span) : Output(span.data(), span.size(), Format::kBfloat16) {}
  Output(absl::Span<Float16> span) : Output(span.data(), span.size(), Format::kFloat16) {}
  Output(void* data, size_t size, Format format) : data_(data), size_(size), format_(format) {}

  void* data() const { return data_; }
  size_t size() const { return size_; }
  Format format() const { return format_; }
  bool is_absent() const { return data_ == nullptr; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  Format format_ = Format::kFloat32;
};

// The spans that a step of any algorithm reads and writes beside the algorithm's own state.
//
// The forms: parameter and gradient fp32; parameter fp32 (the master), gradient bf16 or fp16, and
// `copy` in bf16 or fp16, which gets the new parameter rounded; parameter bf16 without a master.
// All arithmetic is in fp32, and a value is rounded once, when it is stored.
struct StepSpans {
  Input gradient;
  Input parameter;       // fp32 or bf16.
  Output new_parameter;  // In the format of `parameter`.
  Output copy;           // Or absent.

  // Multiplies every gradient first, in fp32: to clip, or to undo a loss scale. Finite.
  double gradient_factor = 1;

  // If set, a bf16 parameter is rounded stochastically: up or down with a probability proportional
  // to the nearness of each neighbour. The random bits are a function of this seed, the step and
  // the element's index in the parameter list, in which the span begins at `first_element`.
  absl::optional<uint64_t> rounding_seed;
  uint64_t first_element = 0;
};

}  // namespace memtide::optimizer

#endif  // MEMTIDE_DAEMON_OPTIMIZER_SPANS_H_

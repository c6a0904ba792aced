#include "daemon/optimizer/work.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/optimizer/gradient.h"

namespace memtide::optimizer {
namespace {

// Number and size of a work's chunks.
struct Chunks {
  uint32_t reads = 0, count = 0;
  uint64_t bytes = 0;  // The size of each.
};

enum class Role { kRead, kWritten };

absl::Status CheckSpan(absl::string_view name, const Place& place, uint64_t count, uint64_t width,
                       Role role, const Chunks& chunks) {
  // Work numbers the chunks that it reads before those that it writes.
  const bool written = place.chunk >= chunks.reads;
  if (place.chunk >= chunks.count || written != (role == Role::kWritten)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": chunk number ", place.chunk, " is not one of the ",
                     role == Role::kRead ? "read" : "written", " ones (", chunks.reads, " of ",
                     chunks.count, " are read, the others are written)"));
  }
  if (place.offset % width != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": offset ", place.offset, " is not a multiple of the element's ", width, " bytes"));
  }
  // The bound is divided because `count`, which comes from a client, could overflow in a product.
  if (place.offset > chunks.bytes || count > (chunks.bytes - place.offset) / width) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", count, " elements of ", width,
                                                   " bytes from ", place.offset,
                                                   " do not lie in a chunk of ", chunks.bytes));
  }
  return absl::OkStatus();
}

// A span that is written.
struct Written {
  Place place;
  uint64_t bytes = 0;
};

// The sums cannot overflow: CheckSpan() has bounded both spans by the size of a chunk.
bool Overlap(const Written& a, const Written& b) {
  return a.place.chunk == b.place.chunk && a.place.offset < b.place.offset + b.bytes &&
         b.place.offset < a.place.offset + a.bytes;
}

// All spans that a piece writes.
class SpansWritten {
 public:
  absl::Status Add(absl::string_view name, const Written& span) {
    for (size_t i = 0; i < count_; ++i) {
      if (!Overlap(span, spans_[i])) continue;
      return absl::InvalidArgumentError(absl::StrCat(name, ": it overlaps what else is written"));
    }
    spans_[count_++] = span;
    return absl::OkStatus();
  }

 private:
  // The new parameter, its rounded copy, and the states.
  std::array<Written, 2 + kMostStates> spans_;
  size_t count_ = 0;
};

absl::Status CheckPiece(const Work& work, const Piece& piece, const Chunks& chunks) {
  const uint64_t parameter = BytesPerElement(work.parameter_format);
  const uint64_t state = BytesPerElement(work.state_format);
  const auto check = [&](absl::string_view name, const Place& place, uint64_t width, Role role) {
    return CheckSpan(name, place, piece.elements, width, role, chunks);
  };
  if (piece.elements == 0) return absl::InvalidArgumentError("elements: 0; at least 1");
  MEMTIDE_RETURN_IF_ERROR(
      check("gradient", piece.gradient, BytesPerElement(work.gradient_format), Role::kRead));
  MEMTIDE_RETURN_IF_ERROR(check("parameter", piece.parameter, parameter, Role::kRead));
  MEMTIDE_RETURN_IF_ERROR(check("new_parameter", piece.new_parameter, parameter, Role::kWritten));
  SpansWritten written;
  MEMTIDE_RETURN_IF_ERROR(
      written.Add("new_parameter", {piece.new_parameter, piece.elements * parameter}));
  if (piece.new_rounded.has_value()) {
    const uint64_t rounded = BytesPerElement(work.rounded_format);
    MEMTIDE_RETURN_IF_ERROR(check("new_rounded", *piece.new_rounded, rounded, Role::kWritten));
    MEMTIDE_RETURN_IF_ERROR(
        written.Add("new_rounded", {*piece.new_rounded, piece.elements * rounded}));
    // new_rounded is the copy of an fp32 master; a bf16 parameter has no bits left to round.
    if (work.parameter_format != Format::kFloat32) {
      return absl::InvalidArgumentError(
          "parameter_format: BFLOAT16 with new_rounded; must be FLOAT32");
    }
  }
  const size_t states = StatesOf(work.rule);
  for (size_t i = 0; i < kMostStates; ++i) {
    const bool used = i < states;
    const bool read = used && !work.fresh_states;
    if (piece.states[i].has_value() != read || piece.new_states[i].has_value() != used) {
      return absl::InvalidArgumentError(
          absl::StrCat("states: the rule keeps ", states,
                       "; new_states must be as many, and states as many or, "
                       "with fresh_states, none"));
    }
    if (read) MEMTIDE_RETURN_IF_ERROR(check("state", *piece.states[i], state, Role::kRead));
    if (!used) continue;
    const Place& fresh = *piece.new_states[i];
    MEMTIDE_RETURN_IF_ERROR(check("new_state", fresh, state, Role::kWritten));
    MEMTIDE_RETURN_IF_ERROR(written.Add("new_state", {fresh, piece.elements * state}));
  }
  return absl::OkStatus();
}

uint64_t BytesWrittenPerElement(const Work& work, const Piece& piece) {
  uint64_t bytes = BytesPerElement(work.parameter_format);
  if (piece.new_rounded.has_value()) bytes += BytesPerElement(work.rounded_format);
  return bytes + StatesOf(work.rule) * BytesPerElement(work.state_format);
}

// How much is written to each chunk.
class ChunkFill {
 public:
  explicit ChunkFill(const Chunks& chunks) : chunks_(chunks), written_(chunks.count) {}

  // REQUIRES: the span lies in its chunk. So the sum, which is at most twice that, cannot overflow.
  absl::Status Add(const Place& place, uint64_t bytes) {
    uint64_t& written = written_[place.chunk];
    written += bytes;
    if (written <= chunks_.bytes) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("chunk number ", place.chunk, ": ", written, " bytes or more are written to ",
                     "it, which holds ", chunks_.bytes, "; write each byte once"));
  }
  absl::Status Add(const Work& work, const Piece& piece) {
    MEMTIDE_RETURN_IF_ERROR(
        Add(piece.new_parameter, piece.elements * BytesPerElement(work.parameter_format)));
    if (piece.new_rounded.has_value()) {
      MEMTIDE_RETURN_IF_ERROR(
          Add(*piece.new_rounded, piece.elements * BytesPerElement(work.rounded_format)));
    }
    for (const absl::optional<Place>& state : piece.new_states) {
      if (!state.has_value()) continue;
      MEMTIDE_RETURN_IF_ERROR(Add(*state, piece.elements * BytesPerElement(work.state_format)));
    }
    return absl::OkStatus();
  }

 private:
  const Chunks chunks_;
  std::vector<uint64_t> written_;  // By chunk.
};

// A piece is divided at multiples of this number of elements, which is one of the kernels' tiles.
constexpr uint64_t kGroup = 4096;

// `elements` of the piece from `first` on.
Piece PartOf(const Work& work, const Piece& piece, uint64_t first, uint64_t elements) {
  Piece part = piece;
  part.elements = elements;
  part.first_element += first;
  part.gradient.offset += first * BytesPerElement(work.gradient_format);
  for (Place* place : {&part.parameter, &part.new_parameter}) {
    place->offset += first * BytesPerElement(work.parameter_format);
  }
  if (part.new_rounded.has_value()) {
    part.new_rounded->offset += first * BytesPerElement(work.rounded_format);
  }
  for (auto* states : {&part.states, &part.new_states}) {
    for (absl::optional<Place>& state : *states) {
      if (state.has_value()) state->offset += first * BytesPerElement(work.state_format);
    }
  }
  return part;
}

// Addresses of the chunks of one piece.
struct Spans {
  const Work& work;
  const Piece& piece;
  absl::Span<char* const> chunks;

  void* at(const Place& place) const { return chunks[place.chunk] + place.offset; }
  Input old(size_t i) const {
    if (!piece.states[i].has_value()) return Input();
    return Input(at(*piece.states[i]), piece.elements, work.state_format);
  }
  Output fresh(size_t i) const {
    if (!piece.new_states[i].has_value()) return Output();
    return Output(at(*piece.new_states[i]), piece.elements, work.state_format);
  }
  StepSpans common() const {
    StepSpans spans;
    spans.gradient = Input(at(piece.gradient), piece.elements, work.gradient_format);
    spans.parameter = Input(at(piece.parameter), piece.elements, work.parameter_format);
    spans.new_parameter = Output(at(piece.new_parameter), piece.elements, work.parameter_format);
    if (piece.new_rounded.has_value()) {
      spans.copy = Output(at(*piece.new_rounded), piece.elements, work.rounded_format);
    }
    spans.gradient_factor = work.gradient_factor;
    spans.rounding_seed = work.rounding_seed;
    spans.first_element = piece.first_element;
    return spans;
  }
};

void Step(const AdamOptions& options, const Spans& spans) {
  AdamStep(options, spans.work.step, spans.common(), {spans.old(0), spans.old(1), spans.old(2)},
           {spans.fresh(0), spans.fresh(1), spans.fresh(2)});
}
void Step(const SgdOptions& options, const Spans& spans) {
  SgdStep(options, spans.work.step, spans.common(), {spans.old(0)}, {spans.fresh(0)});
}
void Step(const AdagradOptions& options, const Spans& spans) {
  AdagradStep(options, spans.work.step, spans.common(), {spans.old(0)}, {spans.fresh(0)});
}
void Step(const LionOptions& options, const Spans& spans) {
  LionStep(options, spans.work.step, spans.common(), {spans.old(0)}, {spans.fresh(0)});
}

}  // namespace

size_t StatesOf(const Rule& rule) {
  if (const auto* adam = std::get_if<AdamOptions>(&rule)) return adam->amsgrad ? 3 : 2;
  if (const auto* sgd = std::get_if<SgdOptions>(&rule)) return sgd->momentum != 0 ? 1 : 0;
  return 1;
}

absl::Status Validate(const Work& work, uint32_t reads, uint32_t chunks, uint64_t chunk_bytes) {
  MEMTIDE_RETURN_IF_ERROR(
      std::visit([](const auto& options) { return Validate(options); }, work.rule));
  if (work.step == 0) return absl::InvalidArgumentError("step: 0; steps count from 1");
  // The kernels compute in fp32, where a finite double may be infinite.
  if (!std::isfinite(static_cast<float>(work.gradient_factor))) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient_factor: ", work.gradient_factor, "; must be finite in fp32"));
  }
  if (work.parameter_format == Format::kFloat16 || work.state_format == Format::kFloat16) {
    return absl::InvalidArgumentError(
        "parameter_format, state_format: FLOAT16; must be FLOAT32 or BFLOAT16");
  }
  if (work.rounded_format == Format::kFloat32) {
    return absl::InvalidArgumentError("rounded_format: FLOAT32; must be BFLOAT16 or FLOAT16");
  }
  if (work.rounding_seed.has_value() && work.parameter_format != Format::kBfloat16) {
    return absl::InvalidArgumentError(
        "rounding_seed is set and parameters are FLOAT32; stochastic rounding needs BFLOAT16");
  }
  const Chunks known = {reads, chunks, chunk_bytes};
  ChunkFill fill(known);
  for (const Piece& piece : work.pieces) {
    MEMTIDE_RETURN_IF_ERROR(CheckPiece(work, piece, known));
    MEMTIDE_RETURN_IF_ERROR(fill.Add(work, piece));
  }
  for (const Copy& copy : work.copies) {
    MEMTIDE_RETURN_IF_ERROR(CheckSpan("from", copy.from, copy.bytes, 1, Role::kRead, known));
    MEMTIDE_RETURN_IF_ERROR(CheckSpan("to", copy.to, copy.bytes, 1, Role::kWritten, known));
    MEMTIDE_RETURN_IF_ERROR(fill.Add(copy.to, copy.bytes));
  }
  return absl::OkStatus();
}

uint64_t BytesWritten(const Work& work) {
  uint64_t bytes = 0;
  for (const Copy& copy : work.copies) bytes += copy.bytes;
  for (const Piece& piece : work.pieces) {
    bytes += piece.elements * BytesWrittenPerElement(work, piece);
  }
  return bytes;
}

// No piece reads what another one writes, because CheckSpan() keeps read and written chunks apart.
bool RunSome(const Work& work, absl::Span<char* const> chunks, uint64_t most_bytes,
             Progress* progress) {
  const auto advance = [progress](size_t* done, uint64_t step, uint64_t size) {
    progress->begun += step;
    if (progress->begun < size) return;
    ++*done;
    progress->begun = 0;
  };
  uint64_t left = most_bytes;
  while (left > 0 && progress->copies < work.copies.size()) {
    const Copy& copy = work.copies[progress->copies];
    const uint64_t bytes = std::min(left, copy.bytes - progress->begun);
    std::memcpy(chunks[copy.to.chunk] + copy.to.offset + progress->begun,
                chunks[copy.from.chunk] + copy.from.offset + progress->begun, bytes);
    left -= bytes;
    advance(&progress->copies, bytes, copy.bytes);
  }
  while (left > 0 && progress->pieces < work.pieces.size()) {
    const Piece& whole = work.pieces[progress->pieces];
    const uint64_t width = BytesWrittenPerElement(work, whole);
    const uint64_t most = std::max(kGroup, left / width / kGroup * kGroup);
    const Piece piece =
        PartOf(work, whole, progress->begun, std::min(most, whole.elements - progress->begun));
    const Spans spans = {work, piece, chunks};
    if (work.counts_non_finite) {
      progress->non_finite_gradients += CountNonFinite(spans.common().gradient);
    }
    std::visit([&spans](const auto& options) { Step(options, spans); }, work.rule);
    left -= std::min(left, piece.elements * width);
    advance(&progress->pieces, piece.elements, whole.elements);
  }
  return progress->copies == work.copies.size() && progress->pieces == work.pieces.size();
}

uint64_t Run(const Work& work, absl::Span<char* const> chunks) {
  Progress progress;
  while (!RunSome(work, chunks, std::numeric_limits<uint64_t>::max(), &progress)) {
  }
  return progress.non_finite_gradients;
}

}  // namespace memtide::optimizer

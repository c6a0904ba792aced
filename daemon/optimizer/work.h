// Work: a part of an optimizer's step, as data: which spans of which chunks, by which rule.
//
// The service makes a Work from a request, the engine checks it, and a step thread of the Mover
// runs it. Chunks are indices of a list that travels with the work. The first `reads` of them are
// only read and the others only written, so that nothing changes in place: running a Work twice
// gives the same bits.
//
// Plain values; the functions are pure and run in the calling thread.
#ifndef MEMTIDE_DAEMON_OPTIMIZER_WORK_H_
#define MEMTIDE_DAEMON_OPTIMIZER_WORK_H_

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "daemon/optimizer/adagrad.h"
#include "daemon/optimizer/adam.h"
#include "daemon/optimizer/lion.h"
#include "daemon/optimizer/sgd.h"
#include "daemon/optimizer/spans.h"

namespace memtide::optimizer {

// A byte of a chunk.
struct Place {
  uint32_t chunk = 0;  // Index in the list.
  uint64_t offset = 0;
};

inline constexpr size_t kMostStates = 3;

// Elements that are stepped. Each span lies within one chunk.
struct Piece {
  uint64_t elements = 0;
  Place gradient, parameter, new_parameter;
  // As many as the rule keeps, in the order of its header: Adam's momentum, variance and, with
  // amsgrad, greatest variance; SGD's momentum, where it has one; Adagrad's sum; Lion's momentum.
  std::array<absl::optional<Place>, kMostStates> states, new_states;
  // If set, also receives the new parameter, rounded; the parameter (the master) is fp32 then.
  absl::optional<Place> new_rounded;
  uint64_t first_element = 0;  // Index in the parameter list, for stochastic rounding.
};

// Bytes that are copied unchanged.
struct Copy {
  Place from, to;
  uint64_t bytes = 0;
};

using Rule = std::variant<AdamOptions, SgdOptions, AdagradOptions, LionOptions>;

struct Work {
  Rule rule;
  uint64_t step = 1;           // Step number of the pieces, from 1.
  double gradient_factor = 1;  // Multiplies every gradient before all else.
  bool fresh_states = false;   // The old states are as before the first step, and not read.
  bool counts_non_finite = false;
  Format parameter_format = Format::kFloat32;  // fp32 or bf16.
  Format gradient_format = Format::kFloat32;
  Format state_format = Format::kFloat32;     // fp32 or bf16.
  Format rounded_format = Format::kBfloat16;  // bf16 or fp16.
  // If set, parameters are bf16 and rounded stochastically (spans.h).
  absl::optional<uint64_t> rounding_seed;
  std::vector<Piece> pieces;
  std::vector<Copy> copies;
};

// How many states the rule keeps.
size_t StatesOf(const Rule& rule);

// INVALID_ARGUMENT, naming what is wrong and what is allowed: options that the rule's own Validate
// refuses, spans outside of a chunk of `chunk_bytes`, not aligned or overlapping, a chunk read that
// is to be written or the other way round, too few or too many states, more bytes written to a
// chunk than it holds. So the chunks that a valid work writes bound how long it runs.
absl::Status Validate(const Work& work, uint32_t reads, uint32_t chunks, uint64_t chunk_bytes);

// Runs the work; `chunks` are the addresses of the list's chunks. Returns the number of infinite or
// NaN gradient elements, if that is to be counted (which costs another pass). REQUIRES: the work is
// valid.
uint64_t Run(const Work& work, absl::Span<char* const> chunks);

// How much of a work has been run.
struct Progress {
  size_t copies = 0, pieces = 0;
  uint64_t begun = 0;  // Bytes of the next copy, or elements of the next piece.
  uint64_t non_finite_gradients = 0;
};
// Runs the work on from there until about `most_bytes` more have been written, at least one group
// of elements. True: the work is done. Where it is divided changes no bit of the result. REQUIRES:
// as Run().
bool RunSome(const Work& work, absl::Span<char* const> chunks, uint64_t most_bytes,
             Progress* progress);
// The bytes that the work writes. REQUIRES: the work is valid.
uint64_t BytesWritten(const Work& work);

}  // namespace memtide::optimizer

#endif  // MEMTIDE_DAEMON_OPTIMIZER_WORK_H_

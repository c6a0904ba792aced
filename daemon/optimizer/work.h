// Work: a part of an optimizer's step, as data: which spans of which chunks, by which rule.
//
// Made by the edge from a request, checked by the engine, run by the mover's thread for steps.
// Chunks are numbers of a list that travels beside the work; the first `reads` of it are only read,
// the others only written, so nothing is ever changed in place: to run a work twice gives the same
// bits twice. Plain values; the functions are pure and run in the calling thread.
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
  uint32_t chunk = 0;  // Its number in the list.
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
  // Where the new parameter goes rounded, too; the parameter, its master, is fp32 then.
  absl::optional<Place> new_rounded;
  uint64_t first_element = 0;  // Among all of the optimizer's, for rounding by chance.
};

// Bytes that stay as they are.
struct Copy {
  Place from, to;
  uint64_t bytes = 0;
};

using Rule = std::variant<AdamOptions, SgdOptions, AdagradOptions, LionOptions>;

struct Work {
  Rule rule;
  uint64_t step = 1;           // The pieces' own, from 1 on.
  double gradient_factor = 1;  // Multiplies every gradient before all else.
  bool fresh_states = false;   // The old states are as before the first step, and not read.
  bool counts_non_finite = false;
  Format parameter_format = Format::kFloat32;  // fp32 or bf16.
  Format gradient_format = Format::kFloat32;
  Format state_format = Format::kFloat32;     // fp32 or bf16.
  Format rounded_format = Format::kBfloat16;  // bf16 or fp16.
  // Given, parameters are bf16 and rounded by chance (spans.h).
  absl::optional<uint64_t> rounding_seed;
  std::vector<Piece> pieces;
  std::vector<Copy> copies;
};

// How many states the rule keeps.
size_t StatesOf(const Rule& rule);

// INVALID_ARGUMENT, naming what is wrong and what is allowed: options that the rule's own Validate
// refuses, spans outside of a chunk of `chunk_bytes`, not aligned or overlapping, a chunk read that
// is to be written or the other way round, too few or too many states.
absl::Status Validate(const Work& work, uint32_t reads, uint32_t chunks, uint64_t chunk_bytes);

// Does it. `chunks`: where the bytes of each of the list are. Returns how many of the gradients are
// infinite or NaN, where that is to be counted; it costs another pass over them. REQUIRES: the work
// is valid.
uint64_t Run(const Work& work, absl::Span<char* const> chunks);

}  // namespace memtide::optimizer

#endif  // MEMTIDE_DAEMON_OPTIMIZER_WORK_H_

// Pattern: plans of models whose blocks are alike, described by a few numbers.
//
// The last blocks are kept, as backward uses them first. Some of those before are moved, early ones
// or evenly among the others, so that their transfers are hidden under computing, and the rest is
// recomputed.
//
// Thread safety: thread-compatible plain values; pure functions.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_PATTERN_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_PATTERN_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "daemon/replay/activations/activation_model.h"
#include "daemon/replay/activations/candidate.h"

namespace memtide {

struct Pattern {
  enum class Order : uint8_t { kMovedFirst, kMovedSpread, kMovedLast };

  uint32_t kept_blocks = 0;   // At the end.
  uint32_t moved_blocks = 0;  // Among those before.
  uint32_t kept_inputs = 0;   // The last of those before keep their inputs, the others move them.
  Order order = Order::kMovedFirst;
  Choice attention = Choice::kKeep;  // In recomputed blocks; moved only where inputs are.
  Choice others = Choice::kKeep;
};

Candidate CandidateOf(const ActivationModel& model, const Pattern& pattern);

// The same with one of the numbers changed by `step`, within the number of blocks.
std::vector<Pattern> Neighbors(const Pattern& pattern, uint32_t step, uint32_t blocks);

// Patterns of every order and treatment of attention and others, each with the numbers that make
// `seconds_of` least as far as a descent in ever smaller steps finds them.
std::vector<Pattern> BestPatterns(const ActivationModel& model,
                                  const std::function<double(const Candidate&)>& seconds_of);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_PATTERN_H_

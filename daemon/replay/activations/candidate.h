// Candidate: a choice for each part of each block, and the device memory that it keeps.
//
// Kept bytes count from the moment that saves them to the last one that unpacks them. Recomputed
// ones count from the moment that needs them first, as the block runs forward again there. Moved
// ones count nothing: they are in chunks. Chunks get the budget less the peak of counted bytes.
//
// Thread safety: thread-compatible plain values; pure functions.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_CANDIDATE_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_CANDIDATE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "daemon/replay/activations/activation_model.h"

namespace memtide {

enum class Choice : uint8_t { kKeep, kMove, kRecompute };

struct BlockChoice {
  Choice input = Choice::kKeep, attention = Choice::kKeep, rest = Choice::kKeep;

  Choice of(SavedPart part) const;
  friend bool operator==(const BlockChoice& a, const BlockChoice& b) {
    return a.input == b.input && a.attention == b.attention && a.rest == b.rest;
  }
};

struct Candidate {
  std::vector<BlockChoice> blocks;
  Choice others = Choice::kKeep;  // Kept or moved.

  friend bool operator==(const Candidate& a, const Candidate& b) {
    return a.blocks == b.blocks && a.others == b.others;
  }
};

// The ways in which a block can be treated: inputs are not recomputed, attention's results only
// together with the rest, and the last block not at all, since backward begins with it.
bool IsAllowed(const ActivationModel& model, size_t block, const BlockChoice& choice);

// The first moment that needs what the choice lets the call recompute.
// REQUIRES: choice.rest == Choice::kRecompute.
uint32_t RecomputedFrom(const BlockCall& call, const BlockChoice& choice);

// The time in which an iteration computes results again.
Duration RecomputeTime(const Block& block, const BlockChoice& choice);
Duration RecomputeTime(const ActivationModel& model, const Candidate& candidate);

// The most bytes that are kept at one moment.
Bytes MostKept(const ActivationModel& model, const Candidate& candidate);

// The budget divided between chunks and kept activations.
struct Division {
  uint32_t slots = 0;
  Bytes allowance;  // The budget without the slots.
};
// nullopt: the budget does not allow it.
absl::optional<Division> Divide(const ActivationModel& model, Bytes most_kept);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_CANDIDATE_H_

// PlanSequence: the iteration that a candidate plan makes of the profiled one, for the replay.
//
// Moved activations are packed into chunks in the order in which they are saved, a new chunk for
// each micro-batch: allocated and written in the moment that saves, read in the first one that
// unpacks, freed after the last. Where a block is recomputed, its forward moments run once more,
// with the measured time and with their reads of parameters, before the moment that needs its
// results; what it starts from is read before.
//
// Thread safety: thread-safe. Pure.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_PLAN_SEQUENCE_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_PLAN_SEQUENCE_H_

#include <cstdint>
#include <vector>

#include "daemon/replay/access_sequence.h"
#include "daemon/replay/activations/activation_model.h"
#include "daemon/replay/activations/candidate.h"

namespace memtide {

// A chunk of moved activations, and the moments that use it.
struct MovedChunk {
  std::vector<uint32_t> writes, reads;  // Ascending, each moment once.
  uint32_t freed = 0;                   // After this moment.
};
std::vector<MovedChunk> MovedChunks(const ActivationModel& model, const Candidate& candidate);

// Two iterations: the first writes each chunk of states once, so that each has content, and the
// second is the planned one.
AccessSequence SequenceOf(const ActivationModel& model, const Candidate& candidate);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_PLAN_SEQUENCE_H_

// SyntheticModel: the iteration that a model of some shape would have: its trace and its activation
// profile, without running it. Plans for machines that are not there, tests and benchmarks use it.
//
// Each value of the parameters is in an arena of its own, in the order of blocks. A micro-batch
// runs forward and backward; the step follows the last one, or its parts follow the backward passes
// that complete their gradients. On the host these are parts as the client cuts them
// (_optimizer_step/speculative_plan.py): of whole chunks, each computed as soon as no gradient is
// to come in its chunks. As memory is short then, the chunks of gradients are freed when the next
// iteration begins, and new ones have no content to be read.
//
// Thread safety: thread-compatible plain values; pure functions.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_SYNTHETIC_MODEL_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_SYNTHETIC_MODEL_H_

#include "base/bytes.h"
#include "daemon/replay/access_sequence.h"
#include "daemon/replay/activations/model_shape.h"
#include "memtide/v1/activations.pb.h"

namespace memtide {

// All arenas, each rounded up to chunks.
Bytes StatesOf(const ModelShape& shape);

struct SyntheticModel {
  AccessSequence sequence;        // One iteration.
  v1::ActivationProfile profile;  // Without a budget.
};
// REQUIRES: there is a part; arenas have bytes; the first is of weights, a chunk has an element.
SyntheticModel MakeSyntheticModel(const ModelShape& shape);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_SYNTHETIC_MODEL_H_

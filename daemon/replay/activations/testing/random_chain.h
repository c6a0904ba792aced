// RandomChain: an iteration of a few random tasks, on a random device, for comparing the search for
// plans with the best of all plans.
//
// A task is a forward pass of a block, its backward pass, or the optimizer's step: `tasks` of them
// are (tasks - 1) / 2 blocks and the step. Blocks differ: in time, in bytes of each saved part
// (some have none), in chunks of states, and in whether and how fast they run again. The link takes
// between a tenth and three times of the computing for all bytes, and the budget is between the
// least that fits and a little more than all.
//
// Thread safety: pure. The same seed gives the same chain on every machine.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_TESTING_RANDOM_CHAIN_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_TESTING_RANDOM_CHAIN_H_

#include <cstdint>

#include "daemon/replay/activations/activation_model.h"
#include "daemon/replay/replay.h"

namespace memtide {

struct RandomChain {
  ActivationModel model;
  ReplayOptions options;  // A device, and host memory for all.
};

// REQUIRES: tasks >= 3.
RandomChain MakeRandomChain(uint64_t seed, uint32_t tasks);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_TESTING_RANDOM_CHAIN_H_

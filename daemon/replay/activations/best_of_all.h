// BestOfAll: the best of all plans that keep, move or recompute each block as a whole, by trying
// them. The search for plans is measured and tested against it.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_BEST_OF_ALL_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_BEST_OF_ALL_H_

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "daemon/replay/activations/judge.h"

namespace memtide {

// The time of its iteration; Duration::max() where none fits. It replays 3 plans to the power of
// the number of blocks. Errors are those of the replay.
absl::StatusOr<Duration> BestOfAll(const ActivationModel& model, const ReplayOptions& options);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_BEST_OF_ALL_H_

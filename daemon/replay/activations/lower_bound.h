// LowerBound: a time that no plan of an iteration can beat.
//
// At the moment with the most saved bytes of a micro-batch, what the budget cannot hold is
// elsewhere or is computed again. Moving takes the links' time, and recomputing the process's; the
// bound divides the bytes so that both together take least, as if each byte could be treated alone,
// and as if both could have all of the budget beside the chunks' least reads. The optimizer's step
// comes after, and has a bound of its own.
//
// Thread safety: thread-safe. Pure.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_LOWER_BOUND_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_LOWER_BOUND_H_

#include "base/bytes.h"
#include "base/clock.h"
#include "daemon/replay/activations/activation_model.h"
#include "daemon/replay/replay.h"

namespace memtide {

Duration LowerBound(const ActivationModel& model, const ReplayOptions& options);

// The least budget with which some plan fits.
Bytes LeastBudget(const ActivationModel& model);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_LOWER_BOUND_H_

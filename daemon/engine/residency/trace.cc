// Traces: the movements of the chunks of a job, recorded as they happen.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/engine/residency/copies.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

// REQUIRES: the pending movement that causes the transfer is still set.
TracedMove Residency::Trace(const Chunk& chunk, absl::optional<Tier> from,
                            absl::optional<Tier> to) const {
  TracedMove move;
  move.chunk = chunk.member.value();
  move.from = from;
  move.to = to;
  move.start = core_.now;
  move.moment = chunk.job->trace.moment();
  const bool down = from.has_value() && (!to.has_value() || *to > *from);
  if (down) {
    move.reason = chunk.evict_from.has_value()        ? MoveReason::kVictim
                  : chunk.write_back_from.has_value() ? MoveReason::kWriteBack
                                                      : MoveReason::kRequest;
    move.nearer = static_cast<uint32_t>(chunk.job->tier(*from).victims.size());
  } else {
    move.reason = chunk.uses().waiters.empty() ? MoveReason::kPrefetch : MoveReason::kDemand;
  }
  move.next_use_in_moments = MomentsUntilUse(core_.chunks, chunk);
  return move;
}

}  // namespace memtide

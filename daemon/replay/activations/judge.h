// Judge: what the engine's replay says of a candidate plan.
//
// Thread safety: thread-compatible. Deterministic.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_JUDGE_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_JUDGE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "daemon/replay/activations/activation_model.h"
#include "daemon/replay/activations/candidate.h"
#include "daemon/replay/activations/timeline.h"
#include "daemon/replay/replay.h"

namespace memtide {

struct Verdict {
  Division division;
  Bytes most_kept;
  Bytes chunks;  // The most that exist at once, as bytes.
  LinkBytes moved;
  Duration elapsed{0}, stalled{0}, recomputed{0};
};

// The same without the engine: what Timeline says of a candidate.
absl::optional<Verdict> Foreseen(const ActivationModel& model, const Candidate& candidate,
                                 Timeline* timeline);

class Judge {
 public:
  // `options.device_slots` only says whether there is a device: its slots are the plan's.
  Judge(const ActivationModel& model, const ReplayOptions& options)
      : model_(model), options_(options) {}

  // nullopt: the budget does not allow the candidate. Errors are the engine's.
  absl::StatusOr<absl::optional<Verdict>> operator()(const Candidate& candidate);

  uint32_t replays() const { return replays_; }

 private:
  const ActivationModel& model_;
  const ReplayOptions options_;
  uint32_t replays_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_JUDGE_H_

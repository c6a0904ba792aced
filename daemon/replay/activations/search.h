// Search: for each part of each block, whether to keep, to move or to recompute it.
//
// A quick model of the iteration (Timeline) ranks many candidates, and the engine's own replay
// judges the best of them, beside the plans that systems without a search would have. First come
// plans that treat equal blocks alike: some are kept, some moved, the rest recomputed, whatever the
// order of blocks is. Then single blocks change their treatment, as long as that helps. Better is a
// shorter iteration; bytes that are written to a drive count as more time than they take, since
// they wear it, so that of plans that are nearly as fast the one that writes less is taken.
//
// Thread safety: thread-safe. Deterministic where `most_replays` ends it.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_SEARCH_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_SEARCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "daemon/replay/activations/activation_model.h"
#include "daemon/replay/activations/candidate.h"
#include "daemon/replay/activations/judge.h"
#include "daemon/replay/replay.h"

namespace memtide {

struct SearchOptions {
  // `device_slots`: whether there is a device; see Judge. The model has the compute scale already.
  ReplayOptions replay;
  // CPU time of the calling thread. No replay begins that may end later; what follows is little.
  Duration most_time = std::chrono::milliseconds(950);
  uint32_t most_replays = 100000;  // Beside those of forced plans.
  // False: of forced plans and patterns, the one that Timeline says is best is replayed first, and
  // others only where the budget does not allow it.
  bool replays_forced = true;
  // True: nothing is replayed. The plan is the one that Timeline says is best, and so are its
  // times: those of a system that knows all transfers ahead. `most_replays` plans are looked at.
  bool foreseen = false;
  // The choice for all blocks that allow it, without a search.
  absl::optional<Choice> forced;
};

// A plan that a system without a search would have.
struct Forced {
  std::string name;
  Candidate candidate;
  absl::optional<Verdict> verdict;  // nullopt: the budget does not allow it.
};

struct Found {
  Candidate candidate;
  absl::optional<Verdict> verdict;  // nullopt: no plan fits; see `least_budget`.
  std::vector<Forced> forced;
  // An iteration without a limit on memory, and the bytes that it keeps.
  Duration unlimited{0};
  Bytes unlimited_kept;
  Duration lower_bound{0}, took{0};  // `took` is CPU time.
  uint32_t replays = 0;
  Bytes least_budget;  // The least that would do, where no plan fits.
};

// "all kept", "all recomputed", "inputs moved" (and all else recomputed), "all moved". The middle
// two keep the last block, and move what is saved outside of blocks only where it does not fit.
std::vector<Forced> ForcedPlans(const ActivationModel& model);

// The forced plan in which all blocks that can make this choice.
Candidate ForcedTo(const ActivationModel& model, Choice choice);

// The time that plans are compared by: the iteration's, and a 16th of what the drive takes to
// write.
double CountedSeconds(const Verdict& verdict, const LinkOptions& links);

// Errors are those of the replay.
absl::StatusOr<Found> Search(const ActivationModel& model, const SearchOptions& options);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_SEARCH_H_

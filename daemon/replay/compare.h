// Compare: one trace under several policies, beside the least that any could move.
//
// The policies of other systems follow their published descriptions. Pure; thread-safe.
#ifndef MEMTIDE_DAEMON_REPLAY_COMPARE_H_
#define MEMTIDE_DAEMON_REPLAY_COMPARE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "daemon/replay/replay.h"

namespace memtide {

// The bound; among the names of policies.
inline constexpr absl::string_view kOptimum = "optimum";

// "lru", ..., "optimum": in the order in which they are shown.
std::vector<std::string> PolicyNames();
// nullopt: the optimum. INVALID_ARGUMENT names those that there are.
absl::StatusOr<absl::optional<Policy>> ParsePolicy(absl::string_view name);

// The average costs of one iteration, without warm-up.
struct Outcome {
  std::string policy;
  LinkBytes moved;
  double against_optimum = 1;  // Bytes moved by bytes of the bound; 1 where neither moves any.
  // Nothing for the optimum, which knows no time.
  absl::optional<Duration> stalled, elapsed;
};

// In the order of `policies`. REQUIRES: they are names. `options.policy` is ignored.
absl::StatusOr<std::vector<Outcome>> Compare(const AccessSequence& sequence, ReplayOptions options,
                                             const std::vector<std::string>& policies);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_COMPARE_H_

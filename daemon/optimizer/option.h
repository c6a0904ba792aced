// Checks of single options, for Validate() of each algorithm.
//
// Hyper-parameters come from clients: anything can be in them. INVALID_ARGUMENT names the option,
// its value and what is allowed. Pure functions.
#ifndef MEMTIDE_DAEMON_OPTIMIZER_OPTION_H_
#define MEMTIDE_DAEMON_OPTIMIZER_OPTION_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace memtide::optimizer {

// Options are used as fp32; what is beyond its range would become infinite.
absl::Status ValidateNotNegative(absl::string_view option, double value);
// In [0, 1).
absl::Status ValidateDecayRate(absl::string_view option, double value);
// Finite as fp32, either sign.
absl::Status ValidateFinite(absl::string_view option, double value);

}  // namespace memtide::optimizer

#endif  // MEMTIDE_DAEMON_OPTIMIZER_OPTION_H_

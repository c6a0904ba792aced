#include "daemon/optimizer/option.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace memtide::optimizer {
namespace {

constexpr double kGreatest = std::numeric_limits<float>::max();

absl::Status Refuse(absl::string_view option, double value, absl::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer option ", option, " is ", value, "; must be ", allowed));
}

}  // namespace

// The comparisons are false for NaN.

absl::Status ValidateNotNegative(absl::string_view option, double value) {
  if (value >= 0 && value <= kGreatest) return absl::OkStatus();
  return Refuse(option, value, absl::StrCat("0 to ", kGreatest));
}

absl::Status ValidateDecayRate(absl::string_view option, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return Refuse(option, value, "at least 0 and below 1");
}

absl::Status ValidateFinite(absl::string_view option, double value) {
  if (std::abs(value) <= kGreatest) return absl::OkStatus();
  return Refuse(option, value, absl::StrCat("-", kGreatest, " to ", kGreatest));
}

}  // namespace memtide::optimizer

#include "daemon/config/validate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace memtide {
namespace {

constexpr std::chrono::hours kLongestDuration{24};

}  // namespace

absl::StatusOr<Bytes> RoundPool(absl::string_view field, Bytes size) {
  const Bytes rounded = RoundDown(size, kPoolAlignment);
  if (!rounded.IsZero()) return rounded;
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": ", FormatBytes(size), " is less than the least, ", FormatBytes(kPoolAlignment)));
}

// Rounds up, because the jobs of the last daemon must fit into the pool.
Bytes RoomFor(Bytes persisted) {
  return RoundDown(persisted + kPoolAlignment - Bytes(1), kPoolAlignment);
}

absl::StatusOr<Bytes> LessOrRefuse(const absl::Status& problem, Bytes largest, Bytes persisted,
                                   const Machine& machine, Config* config) {
  // With jobs to restore, a refusal would lose them (decision 14).
  if (!machine.persisted.any) return problem;
  const Bytes size = std::max(RoundDown(largest, kPoolAlignment), RoomFor(persisted));
  config->warnings.push_back(
      absl::StrCat(problem.message(), ". It is ", FormatBytes(size),
                   " until the next start, so that the jobs of the last daemon fit"));
  return size;
}

absl::StatusOr<Duration> ToDuration(absl::string_view field,
                                    const google::protobuf::Duration& duration) {
  const auto longest_s = std::chrono::seconds(kLongestDuration).count();
  if (duration.seconds() < 0 || duration.seconds() >= longest_s || duration.nanos() < 0 ||
      duration.nanos() >= 1'000'000'000) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", duration.seconds(), " s; must be 0 s to ", longest_s, " s"));
  }
  return std::chrono::seconds(duration.seconds()) + std::chrono::nanoseconds(duration.nanos());
}

}  // namespace memtide

#include "client/rpc/daemon_limits.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/version.h"

namespace memtide::client {
namespace {

// Sums and products of a few limits do not overflow.
constexpr uint64_t kMaxCount = 1 << 28;
constexpr uint64_t kMaxWaitSeconds = 7 * 24 * 60 * 60;

// The library divides calls by these limits, so a zero would make it call for ever. A field that an
// older daemon does not send is zero.
absl::Status CheckLimit(const char* name, uint64_t value, uint64_t largest) {
  if (value >= 1 && value <= largest) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the daemon's limit ", name, " is ", value, "; must be 1 to ", largest,
                   ". Its version may differ from this library's, which is ", kVersion,
                   ": install both of one version, and restart the daemon"));
}

}  // namespace

absl::StatusOr<DaemonLimits> ReadLimits(const v1::Limits& sent) {
  for (const auto& [name, value] : {
           std::pair{"chunks_per_call", sent.chunks_per_call()},
           {"moments_per_call", sent.moments_per_call()},
           {"uses_per_call", sent.uses_per_call()},
           {"iteration_ends_per_call", sent.iteration_ends_per_call()},
           {"step_manifest_bytes", sent.step_manifest_bytes()},
           {"chunks_per_node", sent.chunks_per_node()},
           {"min_slots", sent.min_slots()},
       }) {
    MEMTIDE_RETURN_IF_ERROR(CheckLimit(name, value, kMaxCount));
  }
  // A negative number of seconds becomes a large one. The nanoseconds beside them do not count.
  const auto max_wait_s = static_cast<uint64_t>(sent.max_wait().seconds());
  MEMTIDE_RETURN_IF_ERROR(CheckLimit("max_wait", max_wait_s, kMaxWaitSeconds));
  DaemonLimits limits;
  limits.chunks_per_call = sent.chunks_per_call();
  limits.moments_per_call = sent.moments_per_call();
  limits.uses_per_call = sent.uses_per_call();
  limits.iteration_ends_per_call = sent.iteration_ends_per_call();
  limits.step_manifest = Bytes(sent.step_manifest_bytes());
  limits.chunks_per_node = sent.chunks_per_node();
  limits.max_wait = std::chrono::seconds(max_wait_s);
  limits.min_slots = sent.min_slots();
  return limits;
}

}  // namespace memtide::client

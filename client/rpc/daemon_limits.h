// DaemonLimits: the limits that a daemon enforces, as it sent them. The client's calls keep to
// them.
#ifndef MEMTIDE_CLIENT_RPC_DAEMON_LIMITS_H_
#define MEMTIDE_CLIENT_RPC_DAEMON_LIMITS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "memtide/v1/common.pb.h"

namespace memtide::client {

// v1::Limits (proto/memtide/v1/common.proto) defines the fields.
struct DaemonLimits {
  uint32_t chunks_per_call = 0;
  uint32_t moments_per_call = 0, uses_per_call = 0, iteration_ends_per_call = 0;
  Bytes step_manifest;
  uint32_t chunks_per_node = 0;
  Duration max_wait{0};
  uint32_t min_slots = 0;
};

// INTERNAL: a limit is zero, or so large that no daemon enforces it; the message names it.
absl::StatusOr<DaemonLimits> ReadLimits(const v1::Limits& sent);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_DAEMON_LIMITS_H_

// Quotas: what one user, or the members of one group together, may have of the node. Plain values;
// see quota.proto.
#ifndef MEMTIDE_DAEMON_ENGINE_INTERFACE_QUOTA_H_
#define MEMTIDE_DAEMON_ENGINE_INTERFACE_QUOTA_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "daemon/pool/tier.h"
#include "proto/protocol.h"

namespace memtide {

// Whose a job is.
struct Owner {
  uint32_t uid = 0;
  std::vector<uint32_t> groups = {};  // By number, in ascending order, each once.
};

// nullopt: no limit.
struct Limited {
  std::array<absl::optional<Bytes>, kTiers> bytes;
  absl::optional<uint32_t> jobs;
  absl::optional<Bytes> lingering;
  absl::optional<Duration> time_to_live;
  absl::optional<Bytes> written_per_day;  // To SSD; at least kLeastWrittenPerDay.
};

// With less, the largest chunk could never be written.
inline constexpr Bytes kLeastWrittenPerDay(2 * kMaxChunkSize.count());

struct Quota {
  // kDefault: each user for whom there is no quota of kUser.
  enum class Kind : uint8_t { kUser, kGroup, kDefault };
  Kind kind = Kind::kDefault;
  uint32_t id = 0;   // The uid or gid.
  std::string name;  // "user:alice", "group:students" or "default", for messages.
  Limited most;
};

// A quota, and what counts for it.
struct QuotaUse {
  Quota quota;
  // The user whom a quota of kDefault concerns. Absent: it is listed for itself, and nothing
  // counts.
  absl::optional<uint32_t> uid;
  std::array<Bytes, kTiers> bytes;
  uint32_t jobs = 0;
  Bytes lingering;
  Bytes written_last_day;  // To SSD; by a group: since it has such a limit.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_INTERFACE_QUOTA_H_

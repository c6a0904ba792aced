// Functions that the files of Validate share. They are pure; messages begin with the field.
#ifndef MEMTIDE_DAEMON_CONFIG_VALIDATE_H_
#define MEMTIDE_DAEMON_CONFIG_VALIDATE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/config/config.h"

namespace memtide {

// Rounds down to a multiple of kPoolAlignment. INVALID_ARGUMENT: the result is zero.
absl::StatusOr<Bytes> RoundPool(absl::string_view field, Bytes size);
// The smallest pool, a multiple of kPoolAlignment, that has room for `persisted`.
Bytes RoomFor(Bytes persisted);
// Handles a pool for which the machine has no room. Returns `problem`, unless jobs wait to be
// restored, which an error would end: then adds a warning, and returns the larger of `largest` and
// the pool that the jobs need.
absl::StatusOr<Bytes> LessOrRefuse(const absl::Status& problem, Bytes largest, Bytes persisted,
                                   const Machine& machine, Config* config);
// INVALID_ARGUMENT: negative, a day or longer, or not a duration.
absl::StatusOr<Duration> ToDuration(absl::string_view field,
                                    const google::protobuf::Duration& duration);

// Chooses the device and sets its fields. Adds a warning if there is a GPU that cannot be used.
absl::Status SetDevice(const v1::NodeConfig& proto, const Machine& machine, Config* config);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_CONFIG_VALIDATE_H_

// What the files that make Validate share. Pure functions; messages begin with the field.
#ifndef MEMTIDE_DAEMON_CONFIG_VALIDATE_H_
#define MEMTIDE_DAEMON_CONFIG_VALIDATE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/config/config.h"

namespace memtide {

// Down to kPoolAlignment. INVALID_ARGUMENT: that leaves nothing.
absl::StatusOr<Bytes> RoundPool(absl::string_view field, Bytes size);
// INVALID_ARGUMENT: negative, a day or longer, or not a duration.
absl::StatusOr<Duration> ToDuration(absl::string_view field,
                                    const google::protobuf::Duration& duration);

// Chooses the device and sets its fields, and a warning where a GPU is there and cannot be used.
absl::Status SetDevice(const v1::NodeConfig& proto, const Machine& machine, Config* config);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_CONFIG_VALIDATE_H_

// The one place where an absl::Status becomes a gRPC status.
#ifndef MEMTIDE_DAEMON_SERVICE_STATUS_TABLE_H_
#define MEMTIDE_DAEMON_SERVICE_STATUS_TABLE_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace memtide {

// The same code and message. A code that gRPC does not know becomes UNKNOWN; a message longer than
// kMaxMessageBytes is cut, because it travels as a header. A payload kCallAgain becomes the error's
// details.
inline constexpr size_t kMaxMessageBytes = 2048;
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_STATUS_TABLE_H_

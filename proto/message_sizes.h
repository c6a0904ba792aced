// The sizes of messages that proto/memtide/v1 promises. They cannot be sent as Limits are, because
// client and daemon need them before the first message.
#ifndef MEMTIDE_PROTO_MESSAGE_SIZES_H_
#define MEMTIDE_PROTO_MESSAGE_SIZES_H_

#include <cstddef>

namespace memtide {

// The largest gRPC messages (common.proto). A trace is the largest response: JobTrace bounds it.
inline constexpr int kMaxRequestBytes = 1 << 20;
inline constexpr int kMaxResponseBytes = 16 << 20;
// The largest packet of the fd socket, and the longest FdHello.program (session.proto).
inline constexpr size_t kMaxPacketBytes = 4096;
inline constexpr size_t kMaxProgramBytes = 256;

}  // namespace memtide

#endif  // MEMTIDE_PROTO_MESSAGE_SIZES_H_

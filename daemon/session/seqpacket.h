// The system calls of the two sockets: one function each, errno turned into Status here.
//
// Nothing blocks and nothing raises SIGPIPE. Descriptors returned are owned by the caller and
// close-on-exec.
#ifndef MEMTIDE_DAEMON_SESSION_SEQPACKET_H_
#define MEMTIDE_DAEMON_SESSION_SEQPACKET_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace memtide {

// A listening socket at `path`, mode 0660, of type SOCK_SEQPACKET or SOCK_STREAM. REQUIRES: `path`
// does not exist.
absl::StatusOr<int> ListenUnix(const std::string& path, int type);

struct Peer {
  uint32_t uid = 0;
  int32_t pid = 0;
};
// The peer's identity, by SO_PEERCRED.
absl::StatusOr<Peer> PeerOf(int fd);

enum class ReadResult { kPacket, kNothing, kEnd };
// One packet into *packet. kEnd: the peer is gone. INVALID_ARGUMENT: it is longer than
// kMaxPacketBytes, or carries descriptors (which the kernel has thrown away: none is installed).
absl::StatusOr<ReadResult> ReadPacket(int fd, std::string* packet);

// Sends one packet, with a descriptor unless `passed_fd` is -1 (the caller keeps it). False: the
// peer's buffer is full. UNAVAILABLE: the peer is gone.
absl::StatusOr<bool> SendPacket(int fd, absl::string_view packet, int passed_fd);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SESSION_SEQPACKET_H_

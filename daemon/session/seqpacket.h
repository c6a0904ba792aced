// The system calls of the two sockets: one function each, errno turned into Status here.
//
// Nothing blocks and nothing raises SIGPIPE. Descriptors returned are owned by the caller and
// close-on-exec.
#ifndef MEMTIDE_DAEMON_SESSION_SEQPACKET_H_
#define MEMTIDE_DAEMON_SESSION_SEQPACKET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/io/owned_fd.h"

namespace memtide {

// The system's message for errno.
std::string ErrnoText();

// A listening socket at `path`, mode 0660, of type SOCK_SEQPACKET or SOCK_STREAM. REQUIRES: `path`
// does not exist.
absl::StatusOr<int> ListenUnix(const std::string& path, int type);

struct Peer {
  uint32_t uid = 0;
  int32_t pid = 0;
};
// The peer's identity, by SO_PEERCRED.
absl::StatusOr<Peer> PeerOf(int fd);
// The groups that the peer's process had when it connected, by SO_PEERGROUPS: their numbers, in
// ascending order.
std::vector<uint32_t> GroupsOf(int fd);

// A pidfd of the process that connected. Owns none where there are no descriptors left, or where
// the process is gone already. `peer` is PeerOf(fd).
OwnedFd ProcessOf(int fd, const Peer& peer);

enum class ReadResult { kPacket, kNothing, kEnd };
// One packet into *packet. kEnd: the peer is gone. INVALID_ARGUMENT: it is longer than
// kMaxPacketBytes, or carries descriptors (which the kernel has thrown away: none is installed).
absl::StatusOr<ReadResult> ReadPacket(int fd, std::string* packet);

// Sends one packet, with a descriptor unless `passed_fd` is -1 (the caller keeps it). False: the
// peer's buffer is full. UNAVAILABLE: the peer is gone. INTERNAL: it may be there.
absl::StatusOr<bool> SendPacket(int fd, absl::string_view packet, int passed_fd);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SESSION_SEQPACKET_H_

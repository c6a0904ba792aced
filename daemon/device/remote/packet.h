// HelperPacket: what the daemon and a process that it has started send each other over a socket
// that keeps packets apart (SOCK_SEQPACKET). A packet arrives whole or not at all.
//
// Thread safety: thread-safe; several threads may send on one socket.
#ifndef MEMTIDE_DAEMON_DEVICE_REMOTE_PACKET_H_
#define MEMTIDE_DAEMON_DEVICE_REMOTE_PACKET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace memtide {

// The descriptor of its socket in a process that the daemon has started (helper_process.h).
inline constexpr int kHelperSocket = 3;
inline constexpr size_t kMostPacketBytes = 8192;
inline constexpr Duration kForever = Duration::max();

struct HelperPacket {
  std::string text;
  int descriptor = -1;  // At most one, which the receiver owns.
};

// UNAVAILABLE: the other process has ended. REQUIRES: the text has a byte, and kMostPacketBytes at
// most.
absl::Status SendPacket(int socket, const HelperPacket& packet);
// DEADLINE_EXCEEDED after `patience`. UNAVAILABLE: the other process has ended. DATA_LOSS: the
// packet is longer than any should be, or has several descriptors.
absl::StatusOr<HelperPacket> ReceivePacket(int socket, Duration patience);
// Whether a packet can be received without waiting.
bool HasPacket(int socket);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_REMOTE_PACKET_H_

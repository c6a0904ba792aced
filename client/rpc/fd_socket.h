// FdSocket: the socket whose connection is the session. Exchanges the greeting, then receives
// frames and file descriptors.
//
// proto/memtide/v1/session.proto defines the frames. Thread safety: one thread at a time may call
// Connect and Receive; Shutdown and PeerClosed may be called from any thread, and Shutdown ends a
// Receive that blocks.
#ifndef MEMTIDE_CLIENT_RPC_FD_SOCKET_H_
#define MEMTIDE_CLIENT_RPC_FD_SOCKET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/memory/descriptor.h"
#include "memtide/v1/session.pb.h"

namespace memtide::client {

class FdSocket {
 public:
  struct Received {
    v1::FdFrame frame;
    Descriptor descriptor;  // Valid only for a region frame without a CUDA IPC handle.
  };

  // Connects to `socket_dir`/fd.sock and exchanges hello and welcome. UNAVAILABLE: no daemon
  // listens there. If the daemon refuses the session, its code and message are returned.
  static absl::StatusOr<FdSocket> Connect(const std::string& socket_dir,
                                          const std::string& program);

  const v1::FdWelcome& welcome() const { return welcome_; }

  // Blocks for the next frame. UNAVAILABLE: the daemon closed the connection. INTERNAL: it violates
  // the protocol (a truncated packet, too many or too few descriptors).
  absl::StatusOr<Received> Receive();
  void Shutdown();
  // Whether the daemon has closed its end, or the connection has an error. Does not block.
  bool PeerClosed() const;

 private:
  explicit FdSocket(Descriptor socket) : socket_(std::move(socket)) {}
  absl::Status Handshake(const std::string& program);

  Descriptor socket_;
  v1::FdWelcome welcome_;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_FD_SOCKET_H_

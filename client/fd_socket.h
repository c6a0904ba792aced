// FdSocket: the connection that is the session. Says hello, then receives frames and descriptors.
//
// proto/memtide/v1/session.proto says what is spoken. Connect and Receive are for one thread at a
// time; Shutdown may be called from another and ends a Receive that waits.
#ifndef MEMTIDE_CLIENT_FD_SOCKET_H_
#define MEMTIDE_CLIENT_FD_SOCKET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/descriptor.h"
#include "memtide/v1/session.pb.h"

namespace memtide::client {

class FdSocket {
 public:
  struct Received {
    v1::FdFrame frame;
    Descriptor descriptor;  // Of a region frame, unless it has a CUDA IPC handle; of no other.
  };

  // Connects to `socket_dir`/fd.sock and exchanges hello and welcome. UNAVAILABLE: nobody there.
  // The daemon's own refusal: its code and words.
  static absl::StatusOr<FdSocket> Connect(const std::string& socket_dir,
                                          const std::string& program);

  const v1::FdWelcome& welcome() const { return welcome_; }

  // The next frame. UNAVAILABLE: the daemon ended. INTERNAL: it does not keep to the protocol
  // (a packet cut short, a descriptor too many or too few).
  absl::StatusOr<Received> Receive();
  void Shutdown();
  // Whether the other end is closed, as far as the kernel knows now.
  bool HungUp() const;

 private:
  explicit FdSocket(Descriptor socket) : socket_(std::move(socket)) {}
  absl::Status Greet(const std::string& program);

  Descriptor socket_;
  v1::FdWelcome welcome_;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_FD_SOCKET_H_

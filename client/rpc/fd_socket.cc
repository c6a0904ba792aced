#include "client/rpc/fd_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/protocol.h"

namespace memtide::client {
namespace {

// More than one descriptor is a protocol violation. The buffer holds more, so that unexpected ones
// are received, owned and closed.
constexpr int kMaxDescriptorsPerPacket = 16;
constexpr timeval kGreetingTimeout = {10, 0};
constexpr timeval kNoTimeout = {0, 0};

absl::StatusOr<Descriptor> ConnectTo(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", path, " is longer than ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  memcpy(address.sun_path, path.c_str(), path.size());
  // SOCK_SEQPACKET keeps the bounds of packets, so that each descriptor arrives with its own frame.
  // SOCK_CLOEXEC: a program that the script executes must not hold the session open.
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("socket: ", strerror(errno)));
  }
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    // The daemon runs, but its socket is for another user or group: starting one would not help.
    if (errno == EACCES || errno == EPERM) {
      return absl::PermissionDeniedError(absl::StrCat(
          path, ": ", strerror(errno), "; may this user use memtide (its socket's group)?"));
    }
    return absl::UnavailableError(absl::StrCat("no memtide daemon at ", path, ": ", strerror(errno),
                                               "; start memtided, or name its "
                                               "directory (MEMTIDE_SOCKET_DIR)"));
  }
  return socket;
}

// select() knows no descriptors above this number, so that lower ones are left to the program.
constexpr int kSelectLimit = 1024;

// The same file under a number that select() does not need, if the process may have one.
Descriptor AboveSelect(Descriptor received) {
  if (received.get() >= kSelectLimit) return received;
  Descriptor moved(fcntl(received.get(), F_DUPFD_CLOEXEC, kSelectLimit));
  return moved.valid() ? std::move(moved) : std::move(received);
}

absl::Status NoRoomForDescriptor() {
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  return absl::ResourceExhaustedError(
      absl::StrCat("the memtide daemon sent a descriptor of memory, and this process may open no "
                   "more than ",
                   files.rlim_cur,
                   " files; raise the limit (ulimit -n) or use larger chunks "
                   "(--chunk-size)"));
}

// Takes ownership of the descriptors of a received message.
std::vector<Descriptor> TakeDescriptors(msghdr* message) {
  std::vector<Descriptor> taken;
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr;
       header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      // The data of a control message need not be aligned for an int.
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      taken.emplace_back(fd);
    }
  }
  return taken;
}

}  // namespace

absl::StatusOr<FdSocket> FdSocket::Connect(const std::string& socket_dir,
                                           const std::string& program) {
  MEMTIDE_ASSIGN_OR_RETURN(Descriptor connection, ConnectTo(absl::StrCat(socket_dir, "/fd.sock")));
  FdSocket socket(std::move(connection));
  MEMTIDE_RETURN_IF_ERROR(socket.Handshake(program));
  return socket;
}

absl::Status FdSocket::Handshake(const std::string& program) {
  v1::FdHello hello;
  hello.set_protocol_version(kProtocolVersion);
  // The name is shown in listings only, so it is cut rather than refused.
  hello.set_program(program.substr(0, kMaxProgramBytes));
  const std::string packet = hello.SerializeAsString();
  // MSG_NOSIGNAL: a daemon that has ended must not end the script by SIGPIPE.
  if (send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(packet.size())) {
    return absl::UnavailableError(
        absl::StrCat("the memtide daemon closed the connection: ", strerror(errno)));
  }
  // A daemon that is stopped accepts connections but does not reply, so the greeting has a timeout.
  setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &kGreetingTimeout, sizeof(kGreetingTimeout));
  MEMTIDE_ASSIGN_OR_RETURN(const Received first, Receive());
  setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &kNoTimeout, sizeof(kNoTimeout));
  if (first.frame.has_refused()) {
    const v1::FdRefused& refused = first.frame.refused();
    if (refused.code() == 0)
      return absl::InternalError("the memtide daemon refused without an error");
    return absl::Status(static_cast<absl::StatusCode>(refused.code()), refused.message());
  }
  if (!first.frame.has_welcome()) {
    return absl::InternalError("the memtide daemon did not answer a hello with a welcome");
  }
  welcome_ = first.frame.welcome();
  return absl::OkStatus();
}

absl::StatusOr<FdSocket::Received> FdSocket::Receive() {
  char packet[kMaxPacketBytes];
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptorsPerPacket * sizeof(int))];
  iovec data = {packet, sizeof(packet)};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t size;
  do {
    // A signal of the script may interrupt the call, which is then repeated.
    size = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  // Only the greeting has a timeout; later events may be hours apart.
  if (size < 0 && errno == EAGAIN) {
    return absl::UnavailableError("the memtide daemon did not answer in time: is it stopped?");
  }
  if (size <= 0) {
    return absl::UnavailableError(
        "the memtide daemon ended, or ended this session: mapped chunks stay readable, all "
        "others are lost. Restart the daemon, then this program");
  }
  // Own the descriptors before any check, so that an error closes them.
  std::vector<Descriptor> descriptors = TakeDescriptors(&message);
  Received received;
  if ((message.msg_flags & MSG_CTRUNC) != 0 && descriptors.empty()) return NoRoomForDescriptor();
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      !received.frame.ParseFromArray(packet, static_cast<int>(size))) {
    return absl::InternalError(
        "a packet from the memtide daemon is truncated or is not a valid frame");
  }
  const v1::FdFrame& frame = received.frame;
  // Legacy handles of CUDA travel as bytes of the frame, without a descriptor.
  const bool carries_one =
      frame.has_region() && frame.region().memory() != v1::MEMORY_KIND_CUDA_IPC;
  const size_t expected = carries_one ? 1 : 0;
  if (descriptors.size() != expected) {
    return absl::InternalError(absl::StrCat("a packet from the memtide daemon has ",
                                            descriptors.size(), " descriptors instead of ",
                                            expected));
  }
  if (expected > 0) received.descriptor = AboveSelect(std::move(descriptors[0]));
  return received;
}

bool FdSocket::PeerClosed() const {
  // poll() returns at once, and takes nothing from the reader thread.
  pollfd polled = {socket_.get(), POLLRDHUP, 0};
  return poll(&polled, 1, 0) > 0;
}

// The reader thread's Receive() returns, whereas it would go on waiting on a closed descriptor.
void FdSocket::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace memtide::client

#include "daemon/session/seqpacket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/session/fd_packet.h"

namespace memtide {
namespace {

// Connections that wait to be accepted. gRPC's clients do not wait for room here: they fail.
constexpr int kBacklog = 1024;
constexpr mode_t kSocketMode = 0660;
constexpr size_t kFewGroups = 64;
// SO_PEERPIDFD, which the headers of Debian 12 do not have.
constexpr int kPeerPidFd = 77;

}  // namespace

std::string ErrnoText() { return std::strerror(errno); }

absl::StatusOr<int> ListenUnix(const std::string& path, int type) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  MEMTIDE_CHECK(path.size() < sizeof(address.sun_path)) << path;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return absl::InternalError(absl::StrCat("socket: ", ErrnoText()));
  absl::Cleanup close_fd = [fd] { close(fd); };
  // Nothing can connect before listen, so no peer sees the mode that the umask gave.
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), kSocketMode) != 0 || listen(fd, kBacklog) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on \"", path, "\": ", ErrnoText()));
  }
  std::move(close_fd).Cancel();
  return fd;
}

absl::StatusOr<Peer> PeerOf(int fd) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  // The kernel recorded these when the peer connected; no message can forge them.
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return absl::InternalError(absl::StrCat("SO_PEERCRED: ", ErrnoText()));
  }
  return Peer{credentials.uid, credentials.pid};
}

std::vector<uint32_t> GroupsOf(int fd) {
  std::vector<gid_t> groups(kFewGroups);
  const auto ask = [&] {
    socklen_t size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    const int result = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size);
    // The kernel says how many there are, also where the buffer is too small.
    groups.resize(size / sizeof(gid_t));
    return result == 0;
  };
  // Before Linux 4.13 there is no such option, and the group of the process is all that is known.
  if (!ask() && (errno != ERANGE || !ask())) groups.clear();
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0) {
    groups.push_back(credentials.gid);
  }
  std::sort(groups.begin(), groups.end());
  return {groups.begin(), std::unique(groups.begin(), groups.end())};
}

OwnedFd ProcessOf(int fd, const Peer& peer) {
  int process = -1;
  socklen_t size = sizeof(process);
  if (getsockopt(fd, SOL_SOCKET, kPeerPidFd, &process, &size) == 0) return OwnedFd(process);
  // Linux before 6.5 has only the number. A process that connected and ended within the moment
  // since may have passed it on; then the wait is for another process, and bounded.
  return OwnedFd(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
}

absl::StatusOr<ReadResult> ReadPacket(int fd, std::string* packet) {
  packet->resize(kMaxPacketBytes);
  iovec part = {packet->data(), packet->size()};
  // Without room for control data the kernel drops passed descriptors instead of installing them.
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ssize_t got;
  do {
    got = recvmsg(fd, &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? ReadResult::kNothing : ReadResult::kEnd;
  }
  packet->resize(static_cast<size_t>(got));
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return absl::InvalidArgumentError("a client may not send descriptors");
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("packet longer than ", kMaxPacketBytes, " bytes"));
  }
  // An empty packet reads like the end; no message of ours is empty, so it may end the session.
  return got == 0 ? ReadResult::kEnd : ReadResult::kPacket;
}

absl::StatusOr<bool> SendPacket(int fd, absl::string_view packet, int passed_fd) {
  iovec part = {const_cast<char*>(packet.data()), packet.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (passed_fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &passed_fd, sizeof(int));
  }
  ssize_t sent;
  do {
    // Without MSG_NOSIGNAL, a peer that is gone would raise SIGPIPE here.
    sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  // A SOCK_SEQPACKET message is sent as a whole or not at all.
  if (sent >= 0) return true;
  if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
  const bool is_gone = errno == EPIPE || errno == ECONNRESET;
  const std::string why = absl::StrCat("the client cannot be reached: ", ErrnoText());
  return is_gone ? absl::UnavailableError(why) : absl::InternalError(why);
}

}  // namespace memtide

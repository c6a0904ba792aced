#include "daemon/device/first_use/helper_protocol.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace memtide {
namespace {

constexpr size_t kMostText = 8192;

}  // namespace

absl::Status SendPacket(int socket, const HelperPacket& packet) {
  iovec data = {const_cast<char*>(packet.text.data()), packet.text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (packet.descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &packet.descriptor, sizeof(int));
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) >= 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("sending to the other process: ", std::strerror(errno)));
}

absl::StatusOr<HelperPacket> ReceivePacket(int socket, Duration patience) {
  pollfd waiting = {socket, POLLIN, 0};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(patience).count();
  int ready;
  do {
    ready = poll(&waiting, 1, static_cast<int>(ms));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) return absl::DeadlineExceededError(absl::StrCat("no answer in ", ms, " ms"));
  char text[kMostText];
  iovec data = {text, sizeof(text)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (size <= 0) return absl::UnavailableError("the other process has ended");
  HelperPacket packet;
  packet.text.assign(text, static_cast<size_t>(size));
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&packet.descriptor, CMSG_DATA(header), sizeof(int));
  }
  return packet;
}

bool HasPacket(int socket) {
  pollfd waiting = {socket, POLLIN, 0};
  return poll(&waiting, 1, 0) > 0;
}

}  // namespace memtide

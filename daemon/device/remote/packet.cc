#include "daemon/device/remote/packet.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {
namespace {

// Returns the first descriptor, or -1, and closes all others.
int TakeDescriptor(msghdr* message, size_t* count) {
  int first = -1;
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr;
       header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      if (++*count == 1) {
        first = descriptor;
      } else {
        close(descriptor);
      }
    }
  }
  return first;
}

}  // namespace

absl::Status SendPacket(int socket, const HelperPacket& packet) {
  MEMTIDE_CHECK(!packet.text.empty() && packet.text.size() <= kMostPacketBytes)
      << packet.text.size();
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
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("sending to the other process: ", std::strerror(errno)));
}

absl::StatusOr<HelperPacket> ReceivePacket(int socket, Duration patience) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(patience).count();
  pollfd waiting = {socket, POLLIN, 0};
  int ready;
  do {
    ready = poll(&waiting, 1, patience == kForever ? -1 : static_cast<int>(ms));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) return absl::DeadlineExceededError(absl::StrCat("no answer in ", ms, " ms"));
  char text[kMostPacketBytes];
  iovec data = {text, sizeof(text)};
  // Room for one more than a packet may have, so that it is seen.
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t size;
  do {
    size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) return absl::UnavailableError("the other process has ended");
  size_t descriptors = 0;
  HelperPacket packet;
  packet.text.assign(text, static_cast<size_t>(size));
  packet.descriptor = TakeDescriptor(&message, &descriptors);
  if (descriptors > 1 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    if (packet.descriptor >= 0) close(packet.descriptor);
    return absl::DataLossError("the other process has sent a packet that is too long");
  }
  return packet;
}

bool HasPacket(int socket) {
  pollfd waiting = {socket, POLLIN, 0};
  return poll(&waiting, 1, 0) > 0;
}

}  // namespace memtide

// A daemon that sends any packets, with any number of descriptors: the client connects only after a
// welcome, ends with one of its errors, and leaves no descriptor open.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "base/check.h"
#include "bazel/message_mutator.h"
#include "client/rpc/fd_socket.h"

namespace memtide::client {
namespace {

// An input is packets: two bytes of length, one with the number of descriptors, then the frame.
constexpr size_t kHeader = 3;
constexpr int kMostDescriptors = 3;

int Listen(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  MEMTIDE_CHECK(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  MEMTIDE_CHECK(listen(fd, 1) == 0);
  return fd;
}

void SendPacket(int to, const uint8_t* frame, size_t size, int descriptors) {
  iovec data = {const_cast<uint8_t*>(frame), size};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (descriptors > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
    const int sent[kMostDescriptors] = {to, to, to};
    std::memcpy(CMSG_DATA(header), sent, descriptors * sizeof(int));
  }
  sendmsg(to, &message, MSG_NOSIGNAL);
}

void Serve(int listener, const uint8_t* data, size_t size) {
  const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  MEMTIDE_CHECK(client >= 0);
  // To close the connection with the hello unread would make the client's next call fail.
  char hello[4096];
  recv(client, hello, sizeof(hello), 0);
  while (size >= kHeader) {
    const size_t length = std::min<size_t>(data[0] | data[1] << 8, size - kHeader);
    // An empty packet looks like the end of the connection.
    if (length > 0) SendPacket(client, data + kHeader, length, data[2] % (kMostDescriptors + 1));
    data += kHeader + length;
    size -= kHeader + length;
  }
  close(client);
}

// Whether the first packet that is sent is a welcome.
bool IsWelcome(const uint8_t* data, size_t size) {
  for (; size >= kHeader && (data[0] | data[1]) == 0; size -= kHeader) data += kHeader;
  v1::FdFrame first;
  if (size < kHeader) return false;
  const size_t length = std::min<size_t>(data[0] | data[1] << 8, size - kHeader);
  return first.ParseFromArray(data + kHeader, static_cast<int>(length)) && first.has_welcome();
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

std::string* const g_directory = [] {
  static std::string name = "/tmp/memtide-fuzz-XXXXXX";
  MEMTIDE_CHECK(mkdtemp(name.data()) != nullptr);
  std::atexit([] { std::filesystem::remove_all(name); });
  return &name;
}();

}  // namespace
}  // namespace memtide::client

// Adds a packet, or changes the first one.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  using namespace memtide::client;  // NOLINT(google-build-using-namespace): one function.
  const std::string before(reinterpret_cast<const char*>(data), size);
  size_t length = 0, rest = 0;
  if (seed % 2 == 0 && size >= kHeader) {
    length = std::min<size_t>(data[0] | data[1] << 8, size - kHeader);
    rest = kHeader + length;
  }
  std::string frame(4096, '\0');
  length = std::min(length, frame.size());
  std::copy_n(before.data() + (length > 0 ? kHeader : 0), length, frame.data());
  memtide::v1::FdFrame message;
  length = memtide::MutateMessage(&message, reinterpret_cast<uint8_t*>(frame.data()), length,
                                  frame.size(), seed / 2);
  const char header[kHeader] = {static_cast<char>(length), static_cast<char>(length >> 8),
                                static_cast<char>(seed % 16 == 0 ? 1 : seed % 5 == 0)};
  const std::string after = std::string(header, kHeader) + frame.substr(0, length);
  const std::string all = seed % 2 == 0 ? after + before.substr(rest) : before + after;
  if (all.size() > most) return size;
  std::copy(all.begin(), all.end(), data);
  return all.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace memtide::client;  // NOLINT(google-build-using-namespace): one function.
  static const int listener = Listen(*g_directory + "/fd.sock");
  // Between two inputs libFuzzer opens some of its own.
  const size_t descriptors = OpenDescriptors();
  std::thread daemon([=] { Serve(listener, data, size); });
  absl::Status status;
  {
    auto socket = FdSocket::Connect(*g_directory, "fuzz");
    status = socket.status();
    if (socket.ok()) MEMTIDE_CHECK(IsWelcome(data, size)) << "without a welcome";
    while (status.ok()) status = socket->Receive().status();
  }
  daemon.join();
  MEMTIDE_CHECK(!status.message().empty() || !IsWelcome(data, size)) << status;
  MEMTIDE_CHECK(OpenDescriptors() == descriptors) << "a descriptor is left open";
  return 0;
}

#include "bench/gpu/child.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace memtide::bench {

void Say(int socket, char word, int descriptor) {
  iovec data = {&word, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  // The other process has ended, so this probe has no answer.
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1) std::exit(1);
}

char Hear(int socket, int* descriptor) {
  char word = 0;
  iovec data = {&word, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) std::exit(1);
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (descriptor != nullptr) {
    *descriptor = -1;
    if (header != nullptr) std::memcpy(descriptor, CMSG_DATA(header), sizeof(int));
  }
  return word;
}

bool HasHeard(int socket) {
  char word = 0;
  return recv(socket, &word, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

void SayNumber(int socket, double number) {
  char bytes[sizeof(number)];
  std::memcpy(bytes, &number, sizeof(number));
  for (const char byte : bytes) Say(socket, byte);
}

double HearNumber(int socket) {
  char bytes[sizeof(double)];
  for (char& byte : bytes) byte = Hear(socket);
  double number = 0;
  std::memcpy(&number, bytes, sizeof(number));
  return number;
}

Child::Child(const std::string& part, const std::string& argument) {
  int ends[2];
  MEMTIDE_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  socket_ = ends[0];
  // The descriptor must stay open across exec.
  const int theirs = dup(ends[1]);
  MEMTIDE_CHECK(theirs >= 0);
  const std::string number = std::to_string(theirs);
  pid_ = fork();
  MEMTIDE_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    // The child is a new program, because CUDA cannot be used in a fork of a process that uses it.
    execl("/proc/self/exe", "gpu_probe", part.c_str(), argument.c_str(), number.c_str(), nullptr);
    _exit(127);
  }
  close(theirs);
  close(ends[1]);
}

Child::~Child() {
  Kill();
  close(socket_);
}

void Child::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  Join();
}

bool Child::Join() {
  if (pid_ < 0) return false;
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace memtide::bench

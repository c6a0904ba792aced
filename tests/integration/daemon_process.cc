#include "tests/integration/daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {
namespace {

// The path of the program under test in the runfiles.
std::string ProgramPath() {
  const char* const path = std::getenv("MEMTIDED");
  MEMTIDE_CHECK(path != nullptr) << "the test's BUILD rule sets MEMTIDED";
  return std::filesystem::absolute(path).string();
}

std::vector<char*> Pointers(std::vector<std::string>* texts) {
  std::vector<char*> pointers;
  for (std::string& text : *texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Moves the descriptors to numbers 3 and up. Runs in the child, between fork and exec.
void PassDescriptors(const std::vector<int>& descriptors) {
  // Each descriptor first moves to a high number, as it may have the number that another one gets.
  constexpr int kAside = 512, kFirst = 3;
  const int count = static_cast<int>(descriptors.size());
  for (int i = 0; i < count; ++i) {
    if (dup2(descriptors[i], kAside + i) < 0) _exit(126);
  }
  for (int i = 0; i < count; ++i) {
    if (dup2(kAside + i, kFirst + i) < 0) _exit(126);
    close(kAside + i);
  }
}

}  // namespace

ScratchDirectory::ScratchDirectory(const std::string& parent)
    : path_(parent + "/memtide-test-XXXXXX") {
  MEMTIDE_CHECK(mkdtemp(path_.data()) != nullptr) << std::strerror(errno);
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

DaemonProcess::DaemonProcess(const std::vector<std::string>& flags,
                             const std::vector<std::string>& environment,
                             const std::vector<int>& descriptors) {
  std::vector<std::string> arguments = {ProgramPath()};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::vector<std::string> variables = environment;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  char listen_pid[32] = "LISTEN_PID=";
  if (!descriptors.empty()) {
    variables.insert(variables.begin(), absl::StrCat("LISTEN_FDS=", descriptors.size()));
  }
  const std::vector<char*> argument_pointers = Pointers(&arguments);
  std::vector<char*> variable_pointers = Pointers(&variables);
  if (!descriptors.empty()) variable_pointers.insert(variable_pointers.begin(), listen_pid);
  int ends[2];
  MEMTIDE_CHECK(pipe2(ends, O_CLOEXEC) == 0) << std::strerror(errno);
  pid_ = fork();
  MEMTIDE_CHECK(pid_ >= 0) << std::strerror(errno);
  if (pid_ == 0) {
    dup2(ends[1], STDERR_FILENO);
    PassDescriptors(descriptors);
    std::snprintf(listen_pid, sizeof(listen_pid), "LISTEN_PID=%d", getpid());
    execve(argument_pointers[0], argument_pointers.data(), variable_pointers.data());
    _exit(127);
  }
  close(ends[1]);
  stderr_fd_ = ends[0];
}

DaemonProcess::~DaemonProcess() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    Wait();
  }
  close(stderr_fd_);
}

std::vector<std::string> DaemonProcess::SmallFlags(const std::string& directory) {
  return {"--socket-dir=" + directory + "/s",
          "--device=emulated",
          "--device-pool=16MiB",
          "--host-pool=64MiB",
          "--ssd-dir=" + directory + "/d",
          "--ssd-pool=128MiB",
          "--metrics-address=off"};
}

bool DaemonProcess::ReadMore() {
  char bytes[4096];
  ssize_t got;
  do {
    got = read(stderr_fd_, bytes, sizeof(bytes));
  } while (got < 0 && errno == EINTR);
  if (got > 0) log_.append(bytes, static_cast<size_t>(got));
  return got > 0;
}

bool DaemonProcess::WaitForLog(const std::string& text) {
  while (log_.find(text) == std::string::npos) {
    if (!ReadMore()) return false;
  }
  return true;
}

void DaemonProcess::Signal(int signal) const {
  MEMTIDE_CHECK(pid_ > 0 && kill(pid_, signal) == 0) << std::strerror(errno);
}

int DaemonProcess::Wait() {
  while (ReadMore()) {
  }
  int status;
  while (waitpid(pid_, &status, 0) < 0) MEMTIDE_CHECK(errno == EINTR) << std::strerror(errno);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int ConnectSeqPacket(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  MEMTIDE_CHECK(path.size() < sizeof(address.sun_path)) << path;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  MEMTIDE_CHECK(fd >= 0) << std::strerror(errno);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

void MeetGpus() {
  // All daemons of this process find the answers here.
  static const ScratchDirectory cache;
  setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
  DaemonProcess asks({"--ask-gpus"});
  MEMTIDE_CHECK(asks.Wait() == 0) << asks.log();
}

Session::Session(const std::string& socket_dir) : fd_(ConnectSeqPacket(socket_dir + "/fd.sock")) {
  MEMTIDE_CHECK(fd_ >= 0) << socket_dir << ": " << std::strerror(errno);
  v1::FdHello hello;
  hello.set_protocol_version(1);
  hello.set_program("test");
  const std::string packet = hello.SerializeAsString();
  MEMTIDE_CHECK(send(fd_, packet.data(), packet.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(packet.size()));
  first_frame_ = Receive();
  token_ = first_frame_.welcome().token();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Each session has its own connection, like sessions of separate processes.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel_ = grpc::CreateCustomChannel("unix:" + socket_dir + "/grpc.sock",
                                       grpc::InsecureChannelCredentials(), arguments);
  chunks_ = v1::ChunkService::NewStub(channel_);
  sessions_ = v1::SessionService::NewStub(channel_);
  admin_ = v1::AdminService::NewStub(channel_);
}

Session::~Session() { close(fd_); }

v1::FdFrame Session::Receive(int* descriptor) {
  char packet[4096];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  iovec data{packet, sizeof(packet)};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (descriptor != nullptr) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  // Without room for control data the kernel drops the descriptor.
  const ssize_t got = recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
  if (descriptor != nullptr) {
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    *descriptor = -1;
    if (header != nullptr) std::memcpy(descriptor, CMSG_DATA(header), sizeof(int));
  }
  v1::FdFrame frame;
  MEMTIDE_CHECK(got <= 0 || frame.ParseFromArray(packet, static_cast<int>(got)));
  return frame;
}

v1::OpenResponse Session::Open() {
  v1::OpenRequest request;
  request.set_chunk_size_bytes(2 << 20);
  request.set_device_share_bytes(8 << 20);
  request.set_host_share_bytes(16 << 20);
  request.set_ssd_share_bytes(32 << 20);
  v1::OpenResponse response;
  const grpc::Status status = sessions_->Open(Context().get(), request, &response);
  MEMTIDE_CHECK(status.ok()) << status.error_message();
  return response;
}

std::vector<uint64_t> Session::Allocate(uint32_t count) {
  v1::AllocateRequest request;
  request.set_request_id(next_request_++);
  request.set_count(count);
  v1::AllocateResponse response;
  const grpc::Status status = chunks_->Allocate(Context().get(), request, &response);
  MEMTIDE_CHECK(status.ok()) << status.error_message();
  return {response.chunk_ids().begin(), response.chunk_ids().end()};
}

std::unique_ptr<grpc::ClientContext> Session::Context() const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->AddMetadata("memtide-token-bin", token_);
  return context;
}

}  // namespace memtide

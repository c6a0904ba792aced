// DaemonProcess: a real memtided for a test. Session: a client that only implements its protocol.
//
// Not thread-safe. Destructors end the process, and remove the directories.
#ifndef MEMTIDE_TESTS_INTEGRATION_DAEMON_PROCESS_H_
#define MEMTIDE_TESTS_INTEGRATION_DAEMON_PROCESS_H_

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "memtide/v1/admin.grpc.pb.h"
#include "memtide/v1/chunks.grpc.pb.h"
#include "memtide/v1/session.grpc.pb.h"

namespace memtide {

// A directory in `parent`, which the destructor removes. Its path is short, because a socket's must
// be.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& parent = "/tmp");
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class DaemonProcess {
 public:
  // Starts memtided with these flags, and with these environment variables ("NAME=value") besides
  // the test's. The test reads its standard error. memtided gets `descriptors` as a service manager
  // passes them, from number 3 on (sd_listen_fds(3)).
  explicit DaemonProcess(const std::vector<std::string>& flags,
                         const std::vector<std::string>& environment = {},
                         const std::vector<int>& descriptors = {});
  // Kills the daemon if it still runs.
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // Flags for small pools without metrics: sockets are in `directory`/s, stores in `directory`/d.
  static std::vector<std::string> SmallFlags(const std::string& directory);

  // Reads the log until a line contains `text`. Returns false if the daemon ends first.
  bool WaitForLog(const std::string& text);
  bool WaitUntilReady() { return WaitForLog(" serves "); }
  void Signal(int signal) const;
  // Waits until the daemon ends; returns the exit status, or 128 + the signal that ended it.
  int Wait();
  // The log as far as it was read. Wait reads all of it.
  const std::string& log() const { return log_; }
  pid_t pid() const { return pid_; }

 private:
  bool ReadMore();

  pid_t pid_ = -1;
  int stderr_fd_ = -1;
  std::string log_;
};

// Runs `memtided --ask-gpus`, so that the daemons which this process starts later have met its
// GPUs. A GPU that is met is asked by calls of CUDA, and faults of the fake
// (MEMTIDE_FAKE_CUDA_FAULTS) name calls by their number.
void MeetGpus();

class Session {
 public:
  // Connects to the daemon whose sockets are in `socket_dir`, and sends FdHello.
  explicit Session(const std::string& socket_dir);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Receives the next frame of the fd socket; at the end of the connection, an empty one. If the
  // frame has a descriptor, the caller owns it; it is closed if `descriptor` is null.
  v1::FdFrame Receive(int* descriptor = nullptr);
  // Opens a job with chunks of 2 MiB.
  v1::OpenResponse Open();
  std::vector<uint64_t> Allocate(uint32_t count);
  // Returns a context with this session's token.
  std::unique_ptr<grpc::ClientContext> Context() const;

  bool welcome() const { return !token_.empty(); }
  const v1::FdFrame& first_frame() const { return first_frame_; }
  v1::ChunkService::Stub& chunks() { return *chunks_; }
  v1::SessionService::Stub& sessions() { return *sessions_; }
  v1::AdminService::Stub& admin() { return *admin_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  int fd_ = -1;
  uint64_t next_request_ = 1;
  v1::FdFrame first_frame_;
  std::string token_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::ChunkService::Stub> chunks_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

// A blocking connection to a SOCK_SEQPACKET socket, or -1 with errno.
int ConnectSeqPacket(const std::string& path);

}  // namespace memtide

#endif  // MEMTIDE_TESTS_INTEGRATION_DAEMON_PROCESS_H_

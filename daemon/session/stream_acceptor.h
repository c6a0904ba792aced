// StreamAcceptor: accepts the connections of a unix stream socket for a server that gets them as
// descriptors.
//
// Each connection is asked for its peer's credentials, held to the limits below, and handed over.
// gRPC's own listener has no limit, and stops accepting for good when descriptors run out; a
// StreamAcceptor tries again until there are some, and connections wait in the kernel's queue
// meanwhile. A connection above a limit is closed at once, counted, and logged once a minute.
//
// One thread. A connection counts until its new owner closes the descriptor.
#ifndef MEMTIDE_DAEMON_SESSION_STREAM_ACCEPTOR_H_
#define MEMTIDE_DAEMON_SESSION_STREAM_ACCEPTOR_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "daemon/io/owned_fd.h"
#include "daemon/metrics/edge_counters.h"

namespace memtide {

struct StreamAcceptorOptions {
  std::string socket_path;
  // Connections at a time: one for each session of FdServerOptions, and as many for inspection. At
  // most half of the process's descriptors (RLIMIT_NOFILE): regions and stores need theirs.
  uint32_t max_connections = 1024;
  // Connections of one uid at a time: one user's flood leaves room for others. At most three
  // quarters of all connections.
  uint32_t max_per_uid = 768;
};

class StreamAcceptor {
 public:
  // Binds the socket (mode 0660): clients may connect, and wait. `counters` must outlive it.
  static absl::StatusOr<std::unique_ptr<StreamAcceptor>> Bind(StreamAcceptorOptions options,
                                                              EdgeCounters* counters);
  // Begins to accept. `hand_over` owns the descriptors that it gets, which do not block. Called
  // once.
  void Start(std::function<void(int fd)> hand_over);
  // Hands nothing over any more. Descriptors that were handed over stay open.
  ~StreamAcceptor();
  StreamAcceptor(const StreamAcceptor&) = delete;
  StreamAcceptor& operator=(const StreamAcceptor&) = delete;

 private:
  // A socket is known by its inode: the number of its descriptor is used again once it is closed.
  struct Connection {
    uint32_t uid = 0;
    dev_t device = 0;
    ino_t inode = 0;
  };
  // At most one line an interval, with what it stands for.
  struct Complaint {
    absl::optional<Instant> last;
    uint64_t unsaid = 0;
  };

  StreamAcceptor(StreamAcceptorOptions options, OwnedFd listening, OwnedFd wake,
                 EdgeCounters* counters);
  void Serve();
  // False: descriptors or memory are short.
  bool AcceptSome();
  absl::Status Admit(OwnedFd fd);
  absl::Status CheckLimits(uint32_t uid);
  // Stops counting what was closed since.
  void ForgetClosed();
  void Forget(std::map<int, Connection>::iterator connection);
  void Complain(Complaint* complaint, const std::string& what);

  const StreamAcceptorOptions options_;
  const OwnedFd listening_, wake_;
  EdgeCounters* const counters_;
  std::function<void(int fd)> hand_over_;
  std::thread thread_;

  // The thread only.
  std::map<int, Connection> connections_;  // By descriptor.
  std::map<uint32_t, uint32_t> per_uid_;
  Complaint refused_, delayed_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SESSION_STREAM_ACCEPTOR_H_

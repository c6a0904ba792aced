// FdServer: the fd socket. One connection is one session, and its end is the session's end.
//
// The server accepts connections on a SOCK_SEQPACKET unix socket, reads the peer's identity from
// the kernel, waits for FdHello, mints the session's token, and from then on sends descriptors and
// revocations to the client. It posts ClientConnected and ClientGone events and, on a GPU,
// ClientQuiet (quiet_watch.h).
//
// A peer that exceeds a limit below is refused and closed. The kernel never installs descriptors
// that a peer sends.
//
// Thread safety: one thread (epoll, never blocking) owns every connection. Send* and Close may be
// called from any thread, also from inside `post`, and only queue.
#ifndef MEMTIDE_DAEMON_SESSION_FD_SERVER_H_
#define MEMTIDE_DAEMON_SESSION_FD_SERVER_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/memory_kind.h"
#include "base/mutex.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"
#include "daemon/metrics/edge_counters.h"
#include "daemon/session/quiet_watch.h"
#include "daemon/session/token_table.h"

namespace memtide {

struct FdServerOptions {
  std::string socket_path;
  std::string boot_id;
  std::string grpc_target;
  // A connection without an FdHello after this time is closed.
  Duration hello_within = std::chrono::seconds(10);
  // Connections, with and without FdHello. More are refused with RESOURCE_EXHAUSTED.
  uint32_t max_connections = 512;
  // Connections of one uid without FdHello: one user's flood leaves room for other users.
  uint32_t max_greeting_per_uid = 64;
  // Frames that wait for a client to read them. Each region takes one: 1024 for a terabyte of host
  // memory, 4096 for device memory that is exported slot by slot, and as many again when they go.
  // With more, the session is closed.
  uint32_t max_queued_frames = 16384;
  // Post ClientQuiet for each session that ended without a Close.
  bool watch_processes = false;
  // Processes of one uid; see QuietWatch. As many as it may have sessions at a time.
  uint32_t max_watched_per_uid = 64;
};

class FdServer {
 public:
  using Post = std::function<void(Event)>;
  // The descriptor or IPC handle with which a client maps a region; the caller owns the former.
  // NOT_FOUND if the region no longer exists. RESOURCE_EXHAUSTED if the process has no descriptor
  // left: the server retries.
  using ExportRegion = std::function<absl::StatusOr<MemoryExport>(RegionId region)>;

  // Binds the socket (mode 0660): clients can connect, and wait for Start. `tokens` and `counters`
  // must outlive the server; `post` and `export_region` are called from the server's thread, until
  // it is destroyed.
  static absl::StatusOr<std::unique_ptr<FdServer>> Bind(FdServerOptions options, TokenTable* tokens,
                                                        EdgeCounters* counters, Post post,
                                                        ExportRegion export_region);
  // Begins to serve. Called once.
  void Start();
  // Closes every connection; posts ClientGone for each session.
  ~FdServer();
  FdServer(const FdServer&) = delete;
  FdServer& operator=(const FdServer&) = delete;

  // These do nothing if the session has ended. Close with an OK reason sends no refusal.
  void SendRegion(SessionId session, RegionId region) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendRegionGone(const memtide::SendRegionGone& gone) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendLeaseBudget(const memtide::SendLeaseBudget& budget) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendRevoke(const Revoke& revoke) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close(SessionId session, absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct RegionFrame {
    RegionId region;
  };
  // A packet, a region (its descriptor is opened only when it is sent), or the end.
  using Frame = std::variant<std::string, RegionFrame, absl::Status>;
  struct Command {
    SessionId session;
    Frame frame;
  };
  struct Connection;
  // By descriptor, which is what epoll returns.
  using Connections = std::map<int, std::unique_ptr<Connection>>;

  FdServer(FdServerOptions options, TokenTable* tokens, EdgeCounters* counters, Post post,
           ExportRegion export_region);

  absl::Status Listen();
  void Queue(Command command) ABSL_LOCKS_EXCLUDED(mutex_);
  void Serve();
  void AcceptAll();
  // Retries for the clients whose region could not be duplicated for want of a descriptor.
  void FlushLacking();
  // Closes connections whose FdHello is overdue; returns how long to wait for the next deadline.
  int CloseSilentOnes();
  // How long to wait for an event, in ms; -1: until there is one.
  int NextTimeout();
  void PostQuiet();
  absl::Status CheckLimits(uint32_t uid) const;
  void Admit(int fd);
  void Read(Connection* connection);
  absl::Status Greet(Connection* connection, absl::string_view packet);
  void RunCommands() ABSL_LOCKS_EXCLUDED(mutex_);
  // Both close the connection when it cannot be written to.
  void Append(Connection* connection, Frame frame);
  void Flush(Connection* connection);
  void Refuse(Connection* connection, const absl::Status& reason);
  void End(Connection* connection, const absl::Status& reason);
  void Remove(Connection* connection);
  Connection* FindSession(SessionId session);

  const FdServerOptions options_;
  TokenTable* const tokens_;
  EdgeCounters* const counters_;
  const Post post_;
  const ExportRegion export_region_;

  // The server's thread only, once started.
  int listen_fd_ = -1, epoll_fd_ = -1, wake_fd_ = -1;
  int spare_fd_ = -1;  // Closed for a moment to refuse a peer when descriptors run out.
  uint64_t next_session_ = 1;
  Connections connections_;
  std::map<SessionId, Connection*> sessions_;
  std::map<uint32_t, uint32_t> greeting_per_uid_;
  std::set<int> lacking_;  // Connections whose next frame needs a descriptor, while there is none.
  QuietWatch quiet_watch_;
  std::deque<std::pair<Instant, int>> greeting_;  // Deadline and descriptor, oldest first.

  Mutex mutex_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SESSION_FD_SERVER_H_

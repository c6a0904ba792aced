// Node: a running daemon, made of its parts in the order in which they need each other.
//
// Owns everything; routes the engine's effects to the mover and the fd socket. Serves from Start
// until destroyed, which ends sessions and gives all memory back.
#ifndef MEMTIDE_DAEMON_NODE_H_
#define MEMTIDE_DAEMON_NODE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "daemon/config/config.h"
#include "daemon/device/device.h"
#include "daemon/engine/engine.h"
#include "daemon/io/disk.h"
#include "daemon/metrics/edge_counters.h"
#include "daemon/metrics/exporter.h"
#include "daemon/mover/mover.h"
#include "daemon/restart/journal.h"
#include "daemon/service/grpc_server.h"
#include "daemon/service/loop.h"
#include "daemon/session/fd_server.h"
#include "daemon/session/socket_dir.h"
#include "daemon/session/token_table.h"

namespace memtide {

class Node : private EffectSink {
 public:
  // Logs what it made. Errors name the setting that would change them.
  static absl::StatusOr<std::unique_ptr<Node>> Start(const Config& config);
  ~Node() override;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Says NOT_SERVING, takes no new sessions and chunks, and returns when nothing is in flight, or
  // DEADLINE_EXCEEDED after `patience`.
  absl::Status Drain(Duration patience);

  // Grows as long as the engine makes progress.
  uint64_t Heartbeats() const { return loop_->ticks_handled(); }

 private:
  explicit Node(const Config& config) : config_(config) {}

  absl::Status OpenDevice();
  absl::Status StartMemory();
  absl::Status StartEdges();
  absl::Status StartMetrics();
  // Goes on with what the daemon before left, and keeps what the next one will need.
  absl::Status TakeUpJobs();
  void CarryOut(Effect effect) override;

  const Config config_;
  std::unique_ptr<SocketDir> socket_dir_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Disk> disk_;
  EdgeCounters edge_counters_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Mover> mover_;
  std::unique_ptr<Journal> journal_;  // None: nothing outlives this daemon.
  TokenTable tokens_;
  ServiceContext services_;
  std::unique_ptr<GrpcServer> grpc_server_;
  std::unique_ptr<FdServer> fd_server_;
  std::unique_ptr<Exporter> exporter_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_NODE_H_

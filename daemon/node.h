// Node: a running daemon. It starts all components in the order of their dependencies.
//
// It owns all of them, and routes the engine's effects to the mover and the fd socket. It serves
// from Start until its destructor, which ends all sessions and frees all memory.
#ifndef MEMTIDE_DAEMON_NODE_H_
#define MEMTIDE_DAEMON_NODE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/version.h"
#include "daemon/config/config.h"
#include "daemon/engine/engine.h"
#include "daemon/io/disk.h"
#include "daemon/metrics/edge_counters.h"
#include "daemon/metrics/exporter.h"
#include "daemon/metrics/node_metrics.h"
#include "daemon/mover/mover.h"
#include "daemon/opened_devices.h"
#include "daemon/recovery/journal.h"
#include "daemon/recovery/persisted_state.h"
#include "daemon/service/grpc_server.h"
#include "daemon/service/loop.h"
#include "daemon/service/metrics_cache.h"
#include "daemon/service/open_calls.h"
#include "daemon/session/fd_server.h"
#include "daemon/session/socket_dir.h"
#include "daemon/session/token_table.h"
#include "daemon/settings/quota_book.h"
#include "daemon/write_keeper.h"

namespace memtide {

class Node : private EffectSink {
 public:
  // Starts the daemon, and logs its pools. An error names the setting that would avoid it;
  // INVALID_ARGUMENT: no later start with these settings works. The pools of `config` have room for
  // `persisted`.
  static absl::StatusOr<std::unique_ptr<Node>> Start(const Config& config,
                                                     PersistedState persisted);
  ~Node() override;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Reports NOT_SERVING and refuses new sessions and chunks. Returns when no transfer is in flight,
  // or DEADLINE_EXCEEDED after `patience`.
  absl::Status Drain(Duration patience);

  // A number that grows while the engine makes progress.
  uint64_t Heartbeats() const { return loop_->ticks_handled(); }

 private:
  explicit Node(const Config& config) : config_(config) {}

  EngineOptions ToEngineOptions() const;
  // `persisted_blocks`: PersistedMemory::blocks.
  absl::Status StartMemory(const std::map<uint64_t, Bytes>& persisted_blocks);
  void StartLoop();
  // Reads the quotas that hold.
  absl::Status StartQuotas();
  absl::Status StartEdges(PersistedState persisted);
  void StartKeeper();
  absl::Status StartMetrics();
  // Restores the jobs of the last daemon, and starts the journal for the next one.
  absl::Status Recover(PersistedState persisted);
  NodeSnapshot SnapshotOf(InspectReply node) const;
  void CarryOut(Effect effect) override;

  const Config config_;
  std::unique_ptr<SocketDir> socket_dir_;
  std::vector<OpenedDevice> devices_;  // By their numbers.
  std::unique_ptr<Disk> disk_;
  std::vector<SsdDrive> ssd_drives_;  // As they were at the start. Empty: no SSD pool.
  EdgeCounters edge_counters_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Mover> mover_;
  std::unique_ptr<Journal> journal_;  // Null: no job outlives this daemon.
  TokenTable tokens_;
  OpenCalls open_calls_;
  std::unique_ptr<QuotaBook> quotas_;
  MetricsCache metrics_{[this](const InspectReply& node) {
    return NodeMetricsText(SnapshotOf(node), edge_counters_, kVersion);
  }};
  ServiceContext services_;
  std::unique_ptr<GrpcServer> grpc_server_;
  std::unique_ptr<FdServer> fd_server_;
  std::unique_ptr<Exporter> exporter_;
  std::unique_ptr<WriteKeeper> write_keeper_;  // Null: no SSD pool.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_NODE_H_

// The gRPC services: authenticate, convert, post, convert back.
//
// A caller's uid and groups are what the kernel says of its connection; a token counts only from
// the uid that it was given to.
//
// The handlers use gRPC's callback API and never block: a call waits as a reactor that the Loop
// finishes, usually before the handler has returned. Handlers of administrators' calls alone write
// a small file first. A call that its client cancels continues, and gRPC drops its reply.
// services.cc lists every method of the services once.
#ifndef MEMTIDE_DAEMON_SERVICE_SERVICES_H_
#define MEMTIDE_DAEMON_SERVICE_SERVICES_H_

#include <grpcpp/impl/service_type.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/host_memory_use.h"
#include "daemon/metrics/edge_counters.h"
#include "daemon/service/convert.h"
#include "daemon/service/loop.h"
#include "daemon/service/metrics_cache.h"
#include "daemon/service/open_calls.h"
#include "daemon/session/token_table.h"
#include "daemon/settings/quota_book.h"

namespace memtide {

// The context must outlive the services.
struct ServiceContext {
  Loop* loop = nullptr;
  const TokenTable* tokens = nullptr;
  OpenCalls* calls = nullptr;
  EdgeCounters* counters = nullptr;
  MetricsCache* metrics = nullptr;
  NodeDefaults node;
  QuotaBook* quotas = nullptr;
  // The uid that sees all traces, and administers the node, besides root.
  uint32_t daemon_uid = 0;
  absl::optional<uint32_t> admin_group;  // Its members administer the node, too.
  std::string version;
  std::string boot_id;
  // By the number of the device; see OpenResponse.cuda_maps_when_idle.
  std::vector<bool> cuda_maps_when_idle;
  std::vector<std::string> warnings;  // See InspectNodeResponse.warnings.
  // See InspectNodeResponse.ssd_directories.
  std::vector<v1::SsdDirectory> ssd_directories;
  // The present use of host memory by the devices. Called from any thread.
  std::function<HostMemoryUse()> host_memory = [] { return HostMemoryUse(); };
  // Why devices cannot be used now, a line each. Called from any thread.
  std::function<std::vector<std::string>()> lost_devices = [] {
    return std::vector<std::string>();
  };
};

// SessionService, ChunkService, OptimizerService and AdminService.
std::vector<std::unique_ptr<grpc::Service>> MakeServices(const ServiceContext* context);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_SERVICES_H_

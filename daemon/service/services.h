// The gRPC services: authenticate, convert, post, convert back.
//
// Handlers are of gRPC's callback API and never block; a call waits as a reactor that the loop
// answers, usually before the handler has returned. A call that its client cancelled goes on, and
// its reply is dropped. Every method of the services is listed once, in services.cc.
#ifndef MEMTIDE_DAEMON_SERVICE_SERVICES_H_
#define MEMTIDE_DAEMON_SERVICE_SERVICES_H_

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/metrics/edge_counters.h"
#include "daemon/service/convert.h"
#include "daemon/service/loop.h"
#include "daemon/session/token_table.h"

namespace memtide {

// What the services need; must outlive them.
struct ServiceContext {
  Loop* loop = nullptr;
  const TokenTable* tokens = nullptr;
  EdgeCounters* counters = nullptr;
  NodeDefaults node;
  uint32_t daemon_uid = 0;  // Who, besides root, may drain.
  std::string version;
  std::string boot_id;
  std::string cuda_device_uuid;       // Empty: the device is no GPU.
  std::vector<std::string> warnings;  // See InspectNodeResponse.warnings.
};

// SessionService, ChunkService, OptimizerService and AdminService.
std::vector<std::unique_ptr<grpc::Service>> MakeServices(const ServiceContext* context);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_SERVICES_H_

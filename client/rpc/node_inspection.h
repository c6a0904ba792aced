// Reads the state of the node from a daemon's AdminService. Needs no session.
#ifndef MEMTIDE_CLIENT_RPC_NODE_INSPECTION_H_
#define MEMTIDE_CLIENT_RPC_NODE_INSPECTION_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace memtide::client {

struct NodeInspectionOptions {
  std::string socket_dir;
  // kList: jobs and quotas, too.
  enum class Sessions : uint8_t { kCount, kList } sessions = Sessions::kCount;
  // The number of chunks to list. Above the daemon's chunks_per_call they come from several calls,
  // between which chunks may be allocated and freed.
  uint32_t max_chunks = 0;
};

// Returns an InspectNodeResponse (proto/memtide/v1/admin.proto) as JSON, with the proto's field
// names and with fields that have their default value. UNAVAILABLE: no daemon listens at
// socket_dir.
absl::StatusOr<std::string> InspectNodeAsJson(const NodeInspectionOptions& options);
// The node's metrics in Prometheus' text format. UNAVAILABLE: as above.
absl::StatusOr<std::string> GetNodeMetrics(const std::string& socket_dir);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_NODE_INSPECTION_H_

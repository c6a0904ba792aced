#include "client/rpc/node_inspection.h"

#include <algorithm>

#include "base/status_macros.h"
#include "client/rpc/admin_call.h"
#include "client/rpc/daemon_limits.h"

namespace memtide::client {
absl::StatusOr<std::string> InspectNodeAsJson(const NodeInspectionOptions& options) {
  v1::InspectNodeRequest request;
  request.set_sessions(options.sessions == NodeInspectionOptions::Sessions::kList);
  request.set_jobs(request.sessions());
  v1::InspectNodeResponse node;
  // The first reply has everything but chunks; the later ones add chunks only.
  MEMTIDE_RETURN_IF_ERROR(
      CallAdmin(options.socket_dir, &v1::AdminService::Stub::InspectNode, request, &node));
  request.set_sessions(false);
  request.set_jobs(false);
  MEMTIDE_ASSIGN_OR_RETURN(const DaemonLimits limits, ReadLimits(node.limits()));
  for (bool more = options.max_chunks > 0; more;) {
    const auto listed = static_cast<uint32_t>(node.chunks_size());
    request.set_max_chunks(std::min(limits.chunks_per_call, options.max_chunks - listed));
    v1::InspectNodeResponse page;
    MEMTIDE_RETURN_IF_ERROR(
        CallAdmin(options.socket_dir, &v1::AdminService::Stub::InspectNode, request, &page));
    node.mutable_chunks()->MergeFrom(page.chunks());
    // A page may have no chunks and not be the last: those of other users are left out.
    more = page.next_chunk() > request.first_chunk() &&
           static_cast<uint32_t>(node.chunks_size()) < options.max_chunks;
    request.set_first_chunk(page.next_chunk());
  }
  return AsJson(node);
}

absl::StatusOr<std::string> GetNodeMetrics(const std::string& socket_dir) {
  v1::GetMetricsResponse metrics;
  MEMTIDE_RETURN_IF_ERROR(CallAdmin(socket_dir, &v1::AdminService::Stub::GetMetrics,
                                    v1::GetMetricsRequest(), &metrics));
  return metrics.text();
}

}  // namespace memtide::client

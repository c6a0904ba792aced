#include "client/node_inspection.h"

#include "base/status_macros.h"
#include "client/admin.h"

namespace memtide::client {

absl::StatusOr<std::string> InspectNodeAsJson(const NodeInspectionOptions& options) {
  v1::InspectNodeRequest request;
  request.set_sessions(options.sessions == NodeInspectionOptions::Sessions::kList);
  request.set_max_chunks(options.max_chunks);
  v1::InspectNodeResponse node;
  MEMTIDE_RETURN_IF_ERROR(
      CallAdmin(options.socket_dir, &v1::AdminService::Stub::InspectNode, request, &node));
  return AsJson(node);
}

}  // namespace memtide::client

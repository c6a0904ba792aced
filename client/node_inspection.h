// What a daemon's AdminService says of the node, as JSON. Needs no session.
#ifndef MEMTIDE_CLIENT_NODE_INSPECTION_H_
#define MEMTIDE_CLIENT_NODE_INSPECTION_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace memtide::client {

struct NodeInspectionOptions {
  std::string socket_dir;
  enum class Sessions : uint8_t { kCount, kList } sessions = Sessions::kCount;
  // To list. Those of more than 4,096 come from several calls, in between which chunks may come and
  // go.
  uint32_t max_chunks = 0;
};

// InspectNodeResponse (proto/memtide/v1/admin.proto) in JSON, with the proto's field names and
// without leaving defaults out. UNAVAILABLE: no daemon at socket_dir.
absl::StatusOr<std::string> InspectNodeAsJson(const NodeInspectionOptions& options);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_NODE_INSPECTION_H_

// One call to a daemon's AdminService, answered as JSON. Needs no session.
#ifndef MEMTIDE_CLIENT_NODE_INSPECTION_H_
#define MEMTIDE_CLIENT_NODE_INSPECTION_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace memtide::client {

struct NodeInspectionOptions {
  std::string socket_dir;
  enum class Sessions : uint8_t { kCount, kList } sessions = Sessions::kCount;
  uint32_t max_chunks = 0;  // To list.
};

// InspectNodeResponse (proto/memtide/v1/admin.proto) in JSON, with the proto's field names and
// without leaving defaults out. UNAVAILABLE: no daemon at socket_dir.
absl::StatusOr<std::string> InspectNodeAsJson(const NodeInspectionOptions& options);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_NODE_INSPECTION_H_

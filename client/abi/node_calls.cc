// Implements client/memtide.h: reading a daemon's state without a client.
#include <stdlib.h>

#include <string>

#include "base/status_macros.h"
#include "client/abi/guard.h"
#include "client/client.h"
#include "client/memtide.h"
#include "client/rpc/admin_call.h"
#include "client/rpc/default_chunk_size.h"
#include "client/rpc/job_trace.h"
#include "client/rpc/node_inspection.h"

namespace {

using memtide::client::CheckArray;
using memtide::client::CopyText;
using memtide::client::Guarded;
using memtide::client::NullArgument;

}  // namespace

extern "C" {

int memtide_inspect_node(const char* socket_dir, int with_sessions, uint32_t max_chunks,
                         char** json) {
  using memtide::client::NodeInspectionOptions;
  return Guarded([&]() -> absl::Status {
    if (json == nullptr) return NullArgument("json");
    // A caller may free the text even after an error: memtide_free_text(NULL) has no effect.
    *json = nullptr;
    NodeInspectionOptions options;
    options.socket_dir = socket_dir != nullptr ? socket_dir : memtide::client::DefaultSocketDir();
    options.sessions = with_sessions != 0 ? NodeInspectionOptions::Sessions::kList
                                          : NodeInspectionOptions::Sessions::kCount;
    options.max_chunks = max_chunks;
    absl::StatusOr<std::string> text = memtide::client::InspectNodeAsJson(options);
    if (!text.ok()) return text.status();
    return CopyText(*text, json);
  });
}

int memtide_call_admin(const char* socket_dir, const char* method, const char* request,
                       char** reply) {
  return Guarded([&]() -> absl::Status {
    if (method == nullptr) return NullArgument("method");
    if (request == nullptr) return NullArgument("request");
    if (reply == nullptr) return NullArgument("reply");
    *reply = nullptr;
    absl::StatusOr<std::string> text = memtide::client::CallAdminByName(
        socket_dir != nullptr ? socket_dir : memtide::client::DefaultSocketDir(), method, request);
    if (!text.ok()) return text.status();
    return CopyText(*text, reply);
  });
}

int memtide_get_metrics(const char* socket_dir, char** text) {
  return Guarded([&]() -> absl::Status {
    if (text == nullptr) return NullArgument("text");
    *text = nullptr;
    absl::StatusOr<std::string> metrics = memtide::client::GetNodeMetrics(
        socket_dir != nullptr ? socket_dir : memtide::client::DefaultSocketDir());
    if (!metrics.ok()) return metrics.status();
    return CopyText(*metrics, text);
  });
}

int memtide_get_trace(const char* socket_dir, uint64_t job_id, char** trace, size_t* bytes) {
  return Guarded([&]() -> absl::Status {
    if (trace == nullptr) return NullArgument("trace");
    if (bytes == nullptr) return NullArgument("bytes");
    *trace = nullptr;
    *bytes = 0;
    memtide::client::JobTraceOptions options;
    options.socket_dir = socket_dir != nullptr ? socket_dir : memtide::client::DefaultSocketDir();
    options.job_id = job_id;
    absl::StatusOr<std::string> serialized = memtide::client::GetJobTrace(options);
    if (!serialized.ok()) return serialized.status();
    MEMTIDE_RETURN_IF_ERROR(CopyText(*serialized, trace));
    *bytes = serialized->size();
    return absl::OkStatus();
  });
}

int memtide_read_trace(const char* trace, size_t bytes, char** json) {
  return Guarded([&]() -> absl::Status {
    MEMTIDE_RETURN_IF_ERROR(CheckArray(trace, bytes, "trace"));
    if (json == nullptr) return NullArgument("json");
    *json = nullptr;
    absl::StatusOr<std::string> text = memtide::client::JobTraceAsJson({trace, bytes});
    if (!text.ok()) return text.status();
    return CopyText(*text, json);
  });
}

int memtide_add_to_trace(const char* trace, size_t bytes, const char* json, size_t json_bytes,
                         char** extended, size_t* extended_bytes) {
  return Guarded([&]() -> absl::Status {
    MEMTIDE_RETURN_IF_ERROR(CheckArray(trace, bytes, "trace"));
    if (json == nullptr) return NullArgument("json");
    if (extended == nullptr) return NullArgument("extended");
    if (extended_bytes == nullptr) return NullArgument("extended_bytes");
    *extended = nullptr;
    *extended_bytes = 0;
    absl::StatusOr<std::string> serialized =
        memtide::client::AddToJobTrace({trace, bytes}, {json, json_bytes});
    if (!serialized.ok()) return serialized.status();
    MEMTIDE_RETURN_IF_ERROR(CopyText(*serialized, extended));
    *extended_bytes = serialized->size();
    return absl::OkStatus();
  });
}

int memtide_default_chunk_bytes(uint64_t device_share_bytes, uint64_t host_share_bytes,
                                uint64_t* chunk_bytes) {
  return Guarded([&]() -> absl::Status {
    if (chunk_bytes == nullptr) return NullArgument("chunk_bytes");
    *chunk_bytes = memtide::client::DefaultChunkSize(memtide::Bytes(device_share_bytes),
                                                     memtide::Bytes(host_share_bytes))
                       .count();
    return absl::OkStatus();
  });
}

// The program may use another allocator than this library, so the library frees what it has
// allocated.
void memtide_free_text(char* text) { free(text); }

}  // extern "C"

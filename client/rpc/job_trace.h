// Traces of jobs (proto/memtide/v1/trace.proto): fetched from a daemon, and converted to JSON.
// Needs no session.
#ifndef MEMTIDE_CLIENT_RPC_JOB_TRACE_H_
#define MEMTIDE_CLIENT_RPC_JOB_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace memtide::client {

struct JobTraceOptions {
  std::string socket_dir;
  uint64_t job_id = 0;  // Zero: the only open job of the daemon.
};

// Returns a serialized Trace, as trace files hold it. UNAVAILABLE: no daemon listens at socket_dir.
// NOT_FOUND, INVALID_ARGUMENT: the errors of AdminService.GetTrace.
absl::StatusOr<std::string> GetJobTrace(const JobTraceOptions& options);

// Converts a serialized Trace to JSON, with the proto's field names and with fields that have their
// default value. INVALID_ARGUMENT: the bytes are not a Trace.
absl::StatusOr<std::string> JobTraceAsJson(std::string_view trace);

// Adds the fields of `json`, protobuf's JSON of a Trace, to a serialized Trace: lists
// grow, and messages are merged. INVALID_ARGUMENT: one of them is no Trace, or the JSON has more
// than kMostAddedJson bytes.
inline constexpr size_t kMostAddedJson = size_t{64} << 20;
absl::StatusOr<std::string> AddToJobTrace(std::string_view trace, std::string_view json);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_JOB_TRACE_H_

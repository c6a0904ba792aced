// Traces of jobs (proto/memtide/v1/trace.proto): fetched from a daemon, and converted to JSON.
// Needs no session.
#ifndef MEMTIDE_CLIENT_RPC_JOB_TRACE_H_
#define MEMTIDE_CLIENT_RPC_JOB_TRACE_H_

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

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_JOB_TRACE_H_

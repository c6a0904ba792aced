// Traces of jobs (proto/memtide/v1/trace.proto): from a daemon, and to read. Needs no session.
#ifndef MEMTIDE_CLIENT_JOB_TRACE_H_
#define MEMTIDE_CLIENT_JOB_TRACE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace memtide::client {

struct JobTraceOptions {
  std::string socket_dir;
  uint64_t job_id = 0;  // Zero: the only job that is open.
};

// A serialized Trace: the bytes that are kept in files. UNAVAILABLE: no daemon at socket_dir.
// NOT_FOUND, INVALID_ARGUMENT: as AdminService.GetTrace has it.
absl::StatusOr<std::string> GetJobTrace(const JobTraceOptions& options);

// A serialized Trace in JSON, with the proto's field names and without leaving defaults out.
// INVALID_ARGUMENT: it is none.
absl::StatusOr<std::string> JobTraceAsJson(std::string_view trace);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_JOB_TRACE_H_

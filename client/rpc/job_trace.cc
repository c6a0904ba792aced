#include "client/rpc/job_trace.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/rpc/admin_call.h"
#include "memtide/v1/trace.pb.h"

namespace memtide::client {

absl::StatusOr<std::string> GetJobTrace(const JobTraceOptions& options) {
  v1::GetTraceRequest request;
  request.set_job_id(options.job_id);
  v1::Trace trace;
  MEMTIDE_RETURN_IF_ERROR(
      CallAdmin(options.socket_dir, &v1::AdminService::Stub::GetTrace, request, &trace));
  // The bytes include fields that this version does not know, so that a newer reader finds them.
  return trace.SerializeAsString();
}

absl::StatusOr<std::string> JobTraceAsJson(std::string_view trace) {
  v1::Trace parsed;
  if (!parsed.ParseFromArray(trace.data(), static_cast<int>(trace.size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("these ", trace.size(), " bytes are not a memtide trace"));
  }
  return AsJson(parsed);
}

}  // namespace memtide::client

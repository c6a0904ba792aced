#include "client/rpc/job_trace.h"

#include <google/protobuf/util/json_util.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/rpc/admin_call.h"
#include "memtide/v1/trace.pb.h"

namespace memtide::client {

namespace {

absl::StatusOr<v1::Trace> Parse(std::string_view trace) {
  v1::Trace parsed;
  if (trace.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !parsed.ParseFromArray(trace.data(), static_cast<int>(trace.size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("these ", trace.size(), " bytes are not a memtide trace"));
  }
  return parsed;
}

}  // namespace

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
  MEMTIDE_ASSIGN_OR_RETURN(const v1::Trace parsed, Parse(trace));
  return AsJson(parsed);
}

absl::StatusOr<std::string> AddToJobTrace(std::string_view trace, std::string_view json) {
  if (json.size() > kMostAddedJson) {
    return absl::InvalidArgumentError(absl::StrCat(json.size(), " bytes of JSON are more than the ",
                                                   kMostAddedJson, " that a trace takes"));
  }
  MEMTIDE_ASSIGN_OR_RETURN(v1::Trace extended, Parse(trace));
  v1::Trace added;
  const auto status =
      google::protobuf::util::JsonStringToMessage({json.data(), json.size()}, &added);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("what a trace is to have is not its JSON: ", std::string(status.message())));
  }
  extended.MergeFrom(added);
  return extended.SerializeAsString();
}

}  // namespace memtide::client

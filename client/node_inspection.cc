#include "client/node_inspection.h"

#include <google/protobuf/util/json_util.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/rpc.h"
#include "memtide/v1/admin.grpc.pb.h"

namespace memtide::client {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(10);

}  // namespace

absl::StatusOr<std::string> InspectNodeAsJson(const NodeInspectionOptions& options) {
  const std::string socket = absl::StrCat(options.socket_dir, "/grpc.sock");
  const std::unique_ptr<v1::AdminService::Stub> admin =
      v1::AdminService::NewStub(MakeChannel(absl::StrCat("unix:", socket)));
  v1::InspectNodeRequest request;
  request.set_sessions(options.sessions == NodeInspectionOptions::Sessions::kList);
  request.set_max_chunks(options.max_chunks);
  v1::InspectNodeResponse node;
  const absl::Status status =
      Call(admin.get(), &v1::AdminService::Stub::InspectNode, "", kTimeout, request, &node);
  if (absl::IsUnavailable(status)) {
    return absl::UnavailableError(
        absl::StrCat("no memtide daemon at ", socket, ": ", std::string(status.message())));
  }
  MEMTIDE_RETURN_IF_ERROR(status);
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  print.always_print_primitive_fields = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(node, &json, print).ok()) {
    return absl::InternalError("the daemon's answer cannot be written as JSON");
  }
  return json;
}

}  // namespace memtide::client

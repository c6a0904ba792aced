#include "client/rpc/admin_call.h"

#include <google/protobuf/util/json_util.h>

namespace memtide::client {

absl::StatusOr<std::string> AsJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions print;
  // Tools read one form of the names, and see zeros instead of missing fields.
  print.preserve_proto_field_names = true;
  print.always_print_primitive_fields = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json, print).ok()) {
    return absl::InternalError(message.GetTypeName() + " cannot be written as JSON");
  }
  return json;
}

namespace {

template <typename Request, typename Reply>
absl::StatusOr<std::string> CallWithJson(
    const std::string& socket_dir,
    grpc::Status (v1::AdminService::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
    const std::string& json) {
  Request request;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &request);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(request.GetTypeName() + ": " + parsed.ToString());
  }
  Reply reply;
  const absl::Status status = CallAdmin(socket_dir, method, request, &reply);
  if (!status.ok()) return status;
  return AsJson(reply);
}

}  // namespace

absl::StatusOr<std::string> CallAdminByName(const std::string& socket_dir,
                                            const std::string& method, const std::string& json) {
  using Stub = v1::AdminService::Stub;
  if (method == "InspectNode") return CallWithJson(socket_dir, &Stub::InspectNode, json);
  if (method == "Drain") return CallWithJson(socket_dir, &Stub::Drain, json);
  if (method == "EndJob") return CallWithJson(socket_dir, &Stub::EndJob, json);
  if (method == "SetQuota") return CallWithJson(socket_dir, &Stub::SetQuota, json);
  if (method == "ClearQuota") return CallWithJson(socket_dir, &Stub::ClearQuota, json);
  return absl::UnimplementedError("\"" + method + "\" is no call of an administrator");
}

}  // namespace memtide::client

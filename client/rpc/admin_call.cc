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

}  // namespace memtide::client

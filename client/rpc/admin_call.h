// Calls to a daemon's AdminService, which need no session, and their replies as JSON.
#ifndef MEMTIDE_CLIENT_RPC_ADMIN_CALL_H_
#define MEMTIDE_CLIENT_RPC_ADMIN_CALL_H_

#include <google/protobuf/message.h>

#include <string>

#include "absl/status/statusor.h"
#include "client/rpc/grpc_call.h"
#include "memtide/v1/admin.grpc.pb.h"

namespace memtide::client {

// UNAVAILABLE: no daemon listens at `socket_dir`.
template <typename Request, typename Reply>
absl::Status CallAdmin(const std::string& socket_dir,
                       grpc::Status (v1::AdminService::Stub::*method)(grpc::ClientContext*,
                                                                      const Request&, Reply*),
                       const Request& request, Reply* reply) {
  const std::string socket = socket_dir + "/grpc.sock";
  const auto admin = v1::AdminService::NewStub(MakeChannel("unix:" + socket));
  const absl::Status status =
      Call(admin.get(), method, "", std::chrono::seconds(10), request, reply);
  if (!absl::IsUnavailable(status)) return status;
  return absl::UnavailableError("no memtide daemon at " + socket + ": " +
                                std::string(status.message()));
}

// Uses the proto's field names, and prints fields that have their default value.
absl::StatusOr<std::string> AsJson(const google::protobuf::Message& message);

// Calls the method of the AdminService by its name, with a request as JSON, and returns the reply
// as JSON. UNIMPLEMENTED: it is none of those that change the node, or InspectNode.
// INVALID_ARGUMENT: the text is no such request.
absl::StatusOr<std::string> CallAdminByName(const std::string& socket_dir,
                                            const std::string& method, const std::string& json);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_ADMIN_CALL_H_

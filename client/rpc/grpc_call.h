// Unary gRPC calls as this library makes them: a deadline on each, and absl::Status as the result.
#ifndef MEMTIDE_CLIENT_RPC_GRPC_CALL_H_
#define MEMTIDE_CLIENT_RPC_GRPC_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"

namespace memtide::client {

// Opens a channel to a gRPC target on this node, with the protocol's message size limits and no
// proxy.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target);

// The numeric codes are equal; the message is the daemon's.
absl::Status FromGrpc(const grpc::Status& status);

// Whether the daemon asks for the same call again, since its wait is for something that ends by
// itself.
bool MustCallAgain(const grpc::Status& status);

// Calls `method` with the session's token in the metadata; an empty `token` is not sent. `timeout`
// is that of one attempt.
template <typename Stub, typename Request, typename Reply>
absl::Status Call(Stub* stub,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                  const std::string& token, Duration timeout, const Request& request,
                  Reply* reply) {
  for (;;) {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("memtide-token-bin", token);
    // tidy(wall-clock): gRPC turns the deadline into a monotonic time when the call starts.
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    const grpc::Status status = (stub->*method)(&context, request, reply);
    if (!MustCallAgain(status)) return FromGrpc(status);
  }
}

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_GRPC_CALL_H_

// Calls over gRPC as this library makes them: a deadline on each, absl::Status out.
#ifndef MEMTIDE_CLIENT_RPC_H_
#define MEMTIDE_CLIENT_RPC_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"

namespace memtide::client {

// A channel to a gRPC target on this node, with the protocol's message cap and no proxy.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target);

// The codes are the same numbers; the words are the daemon's.
absl::Status FromGrpc(const grpc::Status& status);

// `token` empty: without one.
template <typename Stub, typename Request, typename Reply>
absl::Status Call(Stub* stub,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                  const std::string& token, Duration timeout, const Request& request,
                  Reply* reply) {
  grpc::ClientContext context;
  if (!token.empty()) context.AddMetadata("memtide-token-bin", token);
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  return FromGrpc((stub->*method)(&context, request, reply));
}

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_H_

// GrpcServer: the gRPC server on a unix socket, with health and reflection, and its limits. Its
// connections are accepted by a StreamAcceptor, and a StreamWatch limits their calls.
//
// Serves from Start on. Thread-safe.
#ifndef MEMTIDE_DAEMON_SERVICE_GRPC_SERVER_H_
#define MEMTIDE_DAEMON_SERVICE_GRPC_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "daemon/service/services.h"
#include "daemon/service/stream_watch.h"
#include "daemon/session/stream_acceptor.h"

namespace grpc {
class Server;
}

namespace memtide {

class GrpcServer {
 public:
  // Listens on unix:<socket_path>, mode 0660. `context` must outlive the server.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const std::string& socket_path,
                                                           const ServiceContext* context);
  // As Stop, without time for calls to end.
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  // The health service answers NOT_SERVING from now on.
  void SetNotServing();
  // Takes no more calls, and returns when those that it has are answered; after `patience` the
  // others are answered CANCELLED. REQUIRES: the loop still runs, or has been stopped and so has
  // answered them.
  void Stop(Duration patience);

 private:
  GrpcServer(std::vector<std::unique_ptr<grpc::Service>> services,
             std::unique_ptr<grpc::Server> server, std::unique_ptr<StreamWatch> watch,
             std::unique_ptr<StreamAcceptor> acceptor);

  const std::vector<std::unique_ptr<grpc::Service>> services_;
  const std::unique_ptr<grpc::Server> server_;
  const std::unique_ptr<StreamWatch> watch_;
  std::unique_ptr<StreamAcceptor> acceptor_;  // None: stopped.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_GRPC_SERVER_H_

#include "daemon/service/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_posix.h>

#include <utility>

#include "base/status_macros.h"
#include "proto/protocol.h"

namespace memtide {
namespace {

// Calls of one connection at a time: four sessions' worth of waiting fetches.
constexpr int kMaxConcurrentStreams = 1024;
constexpr int kMaxMetadataSize = 8 << 10;
// Bytes that all connections together may buffer. A full session sends 1 MiB at most at a time.
constexpr size_t kMaxBuffers = size_t{256} << 20;
// A client that sends pings faster than this is cut off.
constexpr int kMinPingIntervalMs = 10'000;

void SetLimits(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder->SetMaxSendMessageSize(kMaxResponseBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxConcurrentStreams);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataSize);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kMinPingIntervalMs);
  // Compression gains nothing for small messages, and would let a small message grow into a large
  // one.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // Without a quota, clients that send much and read little make the daemon's memory grow.
  grpc::ResourceQuota quota("memtided");
  quota.Resize(kMaxBuffers);
  builder->SetResourceQuota(quota);
  // Reflection is the only service of the synchronous API, so it needs few threads.
  builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const std::string& socket_path,
                                                              const ServiceContext* context) {
  grpc::EnableDefaultHealthCheckService(true);
  // ServerBuilder's constructor, which comes next, collects the plugins that exist by then.
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetLimits(&builder);
  // The server points at the services, which GrpcServer therefore owns and destroys after it.
  auto services = MakeServices(context);
  for (const auto& service : services) builder.RegisterService(service.get());
  StreamAcceptorOptions options;
  options.socket_path = socket_path;
  // From here on clients can connect. They wait in the kernel's queue until the server runs.
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<StreamAcceptor> acceptor,
                           StreamAcceptor::Bind(std::move(options), context->counters));
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::InternalError("gRPC does not start its server");
  // Connections are accepted by StreamAcceptor, because gRPC's own listener has no limits. A call
  // of a connection that gRPC gets like this tells the descriptor (services.cc).
  auto watch = std::make_unique<StreamWatch>(StreamLimits(), context->counters);
  acceptor->Start([server = server.get(), watch = watch.get()](int fd) {
    grpc::AddInsecureChannelFromFd(server, fd);
    watch->Add(fd);
  });
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(services), std::move(server),
                                                    std::move(watch), std::move(acceptor)));
}

GrpcServer::GrpcServer(std::vector<std::unique_ptr<grpc::Service>> services,
                       std::unique_ptr<grpc::Server> server, std::unique_ptr<StreamWatch> watch,
                       std::unique_ptr<StreamAcceptor> acceptor)
    : services_(std::move(services)),
      server_(std::move(server)),
      watch_(std::move(watch)),
      acceptor_(std::move(acceptor)) {}

// Calls that still wait are cancelled.
GrpcServer::~GrpcServer() { Stop(Duration(0)); }

// Health checks fail from now on, while calls are still served.
void GrpcServer::SetNotServing() { server_->GetHealthCheckService()->SetServingStatus(false); }

void GrpcServer::Stop(Duration patience) {
  // acceptor_ ends first, because a server that shuts down does not close what is handed to it.
  acceptor_.reset();
  // tidy(wall-clock): gRPC turns the deadline into a monotonic time at once.
  server_->Shutdown(std::chrono::system_clock::now() +
                    std::chrono::duration_cast<std::chrono::microseconds>(patience));
  server_->Wait();
}

}  // namespace memtide

#include "daemon/service/services.h"

#include <grpcpp/grpcpp.h>

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "daemon/service/status_table.h"
#include "memtide/v1/admin.grpc.pb.h"
#include "memtide/v1/chunks.grpc.pb.h"
#include "memtide/v1/optimizer.grpc.pb.h"
#include "memtide/v1/session.grpc.pb.h"

namespace memtide {
namespace {

using Context = grpc::CallbackServerContext;

absl::StatusOr<Identity> Authenticate(const ServiceContext& service, const Context& context) {
  const auto& metadata = context.client_metadata();
  // gRPC carries binary values only under names that end with -bin.
  const auto it = metadata.find("memtide-token-bin");
  if (it != metadata.end()) {
    if (const auto identity =
            service.tokens->Find(absl::string_view(it->second.data(), it->second.size()))) {
      return *identity;
    }
  }
  ++service.counters->calls_unauthenticated;
  return absl::UnauthenticatedError(
      "no valid session token in the metadata memtide-token-bin: connect to fd.sock first, and "
      "keep that connection open");
}

// The service adds what the engine does not know: the GPU's uuid and the limits.
void Fill(const ServiceContext& service, const OpenReply& reply, v1::OpenResponse* response) {
  ToResponse(reply, response);
  // A node without a device has device 0 in its replies, too.
  if (reply.device < service.node.device_uuids.size()) {
    response->set_cuda_device_uuid(service.node.device_uuids[reply.device]);
    response->set_cuda_maps_when_idle(service.cuda_maps_when_idle[reply.device]);
  }
  ToProto(service.node.limits, response->mutable_limits());
}

void Fill(const ServiceContext& service, const InspectReply& reply,
          v1::InspectNodeResponse* response) {
  ToResponse(reply, response);
  for (v1::Pool& pool : *response->mutable_pools()) {
    if (pool.tier() != v1::TIER_DEVICE) continue;
    pool.set_cuda_device_uuid(service.node.device_uuids.at(pool.device_number()));
  }
  response->set_version(service.version);
  response->set_boot_id(service.boot_id);
  for (const std::string& warning : service.warnings) response->add_warnings(warning);
  for (const std::string& lost : service.lost_devices()) response->add_warnings(lost);
  for (const v1::SsdDirectory& directory : service.ssd_directories) {
    *response->add_ssd_directories() = directory;
  }
  ToProto(service.host_memory(), response->mutable_host_memory());
  ToProto(service.node.limits, response->mutable_limits());
}

template <typename ReplyValue, typename Response>
void Fill(const ServiceContext& service, const ReplyValue& reply, Response* response) {
  ToResponse(reply, response);
}

// A call that the Loop has queued; it ends with its reply. ReplyValue is the payload of an OK
// reply; monostate for calls without one.
//
// gRPC runs only its default reactor without passing each call to another thread. That reactor gets
// no cancellations: a cancelled call waits for its reply in the engine, which bounds such calls,
// and gRPC drops the reply.
template <typename ReplyValue, typename Response>
class PendingCall final : public Loop::Caller {
 public:
  PendingCall(const ServiceContext* service, grpc::ServerUnaryReactor* reactor, Response* response,
              Instant arrived)
      : service_(service), reactor_(reactor), response_(response), arrived_(arrived) {}

  void OnReply(Reply reply) override {
    if constexpr (!std::is_same_v<ReplyValue, std::monostate>) {
      // An error has no value: gRPC sends the status alone.
      if (reply.status.ok()) {
        const auto* value = std::get_if<ReplyValue>(&reply.value);
        MEMTIDE_CHECK(value != nullptr) << "OK reply of the wrong kind to call " << reply.call;
        Fill(*service_, *value, response_);
      }
    }
    reactor_->Finish(ToGrpc(reply.status));
    if constexpr (std::is_same_v<ReplyValue, FetchReply>) {
      const auto* granted = std::get_if<FetchReply>(&reply.value);
      if (granted != nullptr && !granted->waited) {
        service_->counters->fetch_hits.Add(Now() - arrived_);
      }
    }
    // tidy(raw-new): a PendingCall is made for one call and ends with its reply.
    delete this;
  }

 private:
  const ServiceContext* const service_;
  grpc::ServerUnaryReactor* const reactor_;
  Response* const response_;
  const Instant arrived_;
};

grpc::ServerUnaryReactor* FinishNow(Context* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

template <typename ReplyValue, typename CallEvent, typename Response>
grpc::ServerUnaryReactor* PostCall(const ServiceContext* service, Context* context, CallEvent event,
                                   Response* response, Instant arrived = Now()) {
  // The loop may run in this thread and finish the call before Call returns (decision 5), so the
  // reactor is fetched first.
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  event.call = service->loop->NewCall();
  service->loop->Call(std::move(event),
                      // tidy(raw-new): deletes itself with its reply.
                      new PendingCall<ReplyValue, Response>(service, reactor, response, arrived));
  return reactor;
}

// A call of a session, which the token identifies.
template <typename ReplyValue, typename Request, typename Response>
grpc::ServerUnaryReactor* SessionCall(const ServiceContext* service, Context* context,
                                      const Request& request, Response* response) {
  const Instant arrived = Now();
  const auto identity = Authenticate(*service, *context);
  if (!identity.ok()) return FinishNow(context, identity.status());
  auto event = ToEvent(request, service->node);
  if (!event.ok()) {
    ++service->counters->calls_malformed;
    return FinishNow(context, event.status());
  }
  // The session comes from the token and not from the request, so that no client can act for
  // another.
  event->session = identity->session;
  return PostCall<ReplyValue>(service, context, *std::move(event), response, arrived);
}

#define MEMTIDE_SESSION_METHOD(Method, ReplyValue)                                       \
  grpc::ServerUnaryReactor* Method(Context* context, const v1::Method##Request* request, \
                                   v1::Method##Response* response) override {            \
    return SessionCall<ReplyValue>(service_, context, *request, response);               \
  }

class SessionServiceHandlers final : public v1::SessionService::CallbackService {
 public:
  explicit SessionServiceHandlers(const ServiceContext* service) : service_(service) {}
  MEMTIDE_SESSION_METHOD(Open, OpenReply)
  MEMTIDE_SESSION_METHOD(Renew, std::monostate)
  MEMTIDE_SESSION_METHOD(Close, std::monostate)
  MEMTIDE_SESSION_METHOD(Resize, ResizeReply)
  MEMTIDE_SESSION_METHOD(ReturnRegions, std::monostate)

 private:
  const ServiceContext* const service_;
};

class ChunkServiceHandlers final : public v1::ChunkService::CallbackService {
 public:
  explicit ChunkServiceHandlers(const ServiceContext* service) : service_(service) {}
  MEMTIDE_SESSION_METHOD(Allocate, AllocateReply)
  MEMTIDE_SESSION_METHOD(Fetch, FetchReply)
  MEMTIDE_SESSION_METHOD(Release, std::monostate)
  MEMTIDE_SESSION_METHOD(Evict, std::monostate)
  MEMTIDE_SESSION_METHOD(Prefetch, std::monostate)
  MEMTIDE_SESSION_METHOD(Free, std::monostate)
  MEMTIDE_SESSION_METHOD(Discard, std::monostate)
  MEMTIDE_SESSION_METHOD(Offer, OfferReply)
  MEMTIDE_SESSION_METHOD(Describe, DescribeReply)
  MEMTIDE_SESSION_METHOD(Report, std::monostate)

 private:
  const ServiceContext* const service_;
};

class OptimizerServiceHandlers final : public v1::OptimizerService::CallbackService {
 public:
  explicit OptimizerServiceHandlers(const ServiceContext* service) : service_(service) {}
  MEMTIDE_SESSION_METHOD(Step, StepReply)
  MEMTIDE_SESSION_METHOD(StartPart, PartReply)
  MEMTIDE_SESSION_METHOD(EndPart, std::monostate)
  MEMTIDE_SESSION_METHOD(Commit, std::monostate)

 private:
  const ServiceContext* const service_;
};

#undef MEMTIDE_SESSION_METHOD

class AdminServiceHandlers final : public v1::AdminService::CallbackService {
 public:
  explicit AdminServiceHandlers(const ServiceContext* service) : service_(service) {}

  // Inspection needs no session, so that operators can look at a node that has its limit of
  // sessions.
  grpc::ServerUnaryReactor* InspectNode(Context* context, const v1::InspectNodeRequest* request,
                                        v1::InspectNodeResponse* response) override {
    auto event = ToEvent(*request, service_->node);
    if (!event.ok()) return FinishNow(context, event.status());
    return PostCall<InspectReply>(service_, context, *event, response);
  }

  // Like InspectNode, this call needs no token.
  grpc::ServerUnaryReactor* GetTrace(Context* context, const v1::GetTraceRequest* request,
                                     v1::Trace* response) override {
    auto event = ToEvent(*request, service_->node);
    if (!event.ok()) return FinishNow(context, event.status());
    return PostCall<TraceReply>(service_, context, *event, response);
  }

  grpc::ServerUnaryReactor* Drain(Context* context, const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override {
    const auto identity = Authenticate(*service_, *context);
    if (!identity.ok()) return FinishNow(context, identity.status());
    // A drained daemon takes no new sessions, of any user, so not every user may drain it.
    if (identity->uid != 0 && identity->uid != service_->daemon_uid) {
      return FinishNow(context, absl::PermissionDeniedError(absl::StrCat(
                                    "uid ", identity->uid, " may not drain the node; root and uid ",
                                    service_->daemon_uid, " may")));
    }
    return PostCall<std::monostate>(service_, context, DrainCall{}, response);
  }

 private:
  const ServiceContext* const service_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::Service>> MakeServices(const ServiceContext* context) {
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(std::make_unique<SessionServiceHandlers>(context));
  services.push_back(std::make_unique<ChunkServiceHandlers>(context));
  services.push_back(std::make_unique<OptimizerServiceHandlers>(context));
  services.push_back(std::make_unique<AdminServiceHandlers>(context));
  return services;
}

}  // namespace memtide

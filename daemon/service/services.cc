#include "daemon/service/services.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "daemon/metrics/drive_life.h"
#include "daemon/service/call_messages.h"
#include "daemon/service/status_table.h"
#include "daemon/session/seqpacket.h"
#include "daemon/settings/quota_text.h"
#include "memtide/v1/admin.grpc.pb.h"
#include "memtide/v1/chunks.grpc.pb.h"
#include "memtide/v1/optimizer.grpc.pb.h"
#include "memtide/v1/session.grpc.pb.h"

namespace memtide {
namespace {

using Context = grpc::CallbackServerContext;

// gRPC names a connection that it got as a descriptor by the number, "fd:17". The descriptor is
// open while a call of the connection is, so that the number is that of no other connection.
absl::StatusOr<OpenCalls::Caller> CallerOf(const Context& context) {
  const std::string peer = context.peer();
  absl::string_view number = peer;
  OpenCalls::Caller caller;
  MEMTIDE_CHECK(absl::ConsumePrefix(&number, "fd:") && absl::SimpleAtoi(number, &caller.fd))
      << "a connection from " << peer;
  MEMTIDE_ASSIGN_OR_RETURN(const Peer known, PeerOf(caller.fd));
  caller.uid = known.uid;
  return caller;
}

absl::StatusOr<Identity> Authenticate(const ServiceContext& service, const Context& context,
                                      uint32_t uid) {
  const auto& metadata = context.client_metadata();
  // gRPC carries binary values only under names that end with -bin.
  const auto it = metadata.find("memtide-token-bin");
  if (it != metadata.end()) {
    const auto identity =
        service.tokens->Find(absl::string_view(it->second.data(), it->second.size()));
    // A token that another user has got hold of is worth nothing to that user.
    if (identity.has_value() && identity->uid == uid) return *identity;
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
  for (size_t i = 0; i < service.ssd_directories.size(); ++i) {
    v1::SsdDirectory* const directory = response->add_ssd_directories();
    *directory = service.ssd_directories[i];
    if (i >= reply.drives.size()) continue;
    const DriveWrites& drive = reply.drives[i];
    directory->set_written_bytes(drive.written.count());
    directory->set_written_last_day_bytes(drive.last_day.count());
    directory->set_written_per_day_bytes(drive.per_day.count());
    directory->set_is_awaited(drive.is_awaited);
    const absl::optional<double> years =
        LifeYears(Bytes(directory->endurance_bytes()), drive.written, drive.last_day);
    if (years.has_value()) directory->set_life_years(*years);
  }
  ToProto(service.host_memory(), response->mutable_host_memory());
  ToProto(service.node.limits, response->mutable_limits());
}

void Fill(const ServiceContext& service, const InspectReply& reply,
          v1::GetMetricsResponse* response) {
  response->set_text(service.metrics->Update(reply, Now()));
}

template <typename ReplyValue, typename Response>
void Fill(const ServiceContext& service, const ReplyValue& reply, Response* response) {
  ToResponse(reply, response);
}

// A call that the Loop has queued; it ends with its reply. ReplyValue is the payload of an OK
// reply; monostate for calls without one.
//
// gRPC runs only its default reactor without passing each call to another thread. The default
// reactor gets no cancellations: a cancelled call waits for its reply in the engine, which bounds
// such calls, and gRPC drops the reply.
template <typename ReplyValue, typename Messages>
class PendingCall final : public Loop::Caller {
 public:
  PendingCall(const ServiceContext* service, grpc::ServerUnaryReactor* reactor, Messages* messages,
              Instant arrived)
      : service_(service), reactor_(reactor), messages_(messages), arrived_(arrived) {}

  void OnReply(Reply reply) override {
    if constexpr (!std::is_same_v<ReplyValue, std::monostate>) {
      // An error has no value: gRPC sends the status alone.
      if (reply.status.ok()) {
        const auto* value = std::get_if<ReplyValue>(&reply.value);
        MEMTIDE_CHECK(value != nullptr) << "OK reply of the wrong kind to call " << reply.call;
        Fill(*service_, *value, messages_->response());
        messages_->charge()->SetReply(messages_->response()->ByteSizeLong());
      }
    }
    // The messages may be gone when Finish returns.
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
  Messages* const messages_;
  const Instant arrived_;
};

grpc::ServerUnaryReactor* FinishNow(Context* context, const absl::Status& status) {
  // The refusal may wait long for a client that does not read.
  context->GetRpcAllocatorState()->FreeRequest();
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// REQUIRES: the method has its CallMessagesAllocator.
template <typename Request, typename Response>
CallMessages<Request, Response>* MessagesOf(Context* context) {
  return static_cast<CallMessages<Request, Response>*>(context->GetRpcAllocatorState());
}

// Charges the call to its user. `event` has been made of the request, which is freed.
template <typename ReplyValue, typename CallEvent, typename Messages>
grpc::ServerUnaryReactor* PostCall(const ServiceContext* service, Context* context, CallEvent event,
                                   Messages* messages, Instant arrived = Now()) {
  messages->FreeRequest();
  // The loop may run in this thread and finish the call before Call returns (decision 5), so the
  // reactor is fetched first.
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  event.call = service->loop->NewCall();
  service->loop->Call(std::move(event),
                      // tidy(raw-new): deletes itself with its reply.
                      new PendingCall<ReplyValue, Messages>(service, reactor, messages, arrived));
  return reactor;
}

// Without these calls a session ends, or keeps what others wait for. Their replies are empty.
template <typename Request>
inline constexpr bool kAlwaysTaken =
    std::is_same_v<Request, v1::RenewRequest> || std::is_same_v<Request, v1::CloseRequest> ||
    std::is_same_v<Request, v1::ReleaseRequest>;

// Bytes that a reply to a call without a session may have: a listing is held below 1 MiB.
constexpr size_t kListingBytes = 1 << 20, kSumsBytes = 64 << 10;

// Charges a call that has arrived to its user. `reply_bytes`: what its reply may have; a session's
// calls are limited where they wait.
template <typename Request, typename Messages>
absl::StatusOr<OpenCalls::Caller> Begin(const ServiceContext* service, const Context& context,
                                        Messages* messages, size_t reply_bytes = 0) {
  MEMTIDE_ASSIGN_OR_RETURN(const OpenCalls::Caller caller, CallerOf(context));
  const absl::Status status = service->calls->Begin(caller, reply_bytes, messages->charge());
  if (status.ok() || kAlwaysTaken<Request>) return caller;
  ++service->counters->calls_unread;
  return status;
}

// A call of a session, which the token identifies.
template <typename ReplyValue, typename Request, typename Response>
grpc::ServerUnaryReactor* SessionCall(const ServiceContext* service, Context* context,
                                      const Request& request, Response*) {
  const Instant arrived = Now();
  auto* const messages = MessagesOf<Request, Response>(context);
  const auto caller = Begin<Request>(service, *context, messages);
  if (!caller.ok()) return FinishNow(context, caller.status());
  const auto identity = Authenticate(*service, *context, caller->uid);
  if (!identity.ok()) return FinishNow(context, identity.status());
  auto event = ToEvent(request, service->node);
  if (!event.ok()) {
    ++service->counters->calls_malformed;
    return FinishNow(context, event.status());
  }
  // The session comes from the token and not from the request, so that no client can act for
  // another.
  event->session = identity->session;
  return PostCall<ReplyValue>(service, context, *std::move(event), messages, arrived);
}

#define MEMTIDE_CALL_MESSAGES(Method, Request, Response)            \
  CallMessagesAllocator<Request, Response> messages_of_##Method##_{ \
      [this](auto* messages) { this->SetMessageAllocatorFor_##Method(messages); }};

using Nothing = std::monostate;

#define MEMTIDE_SESSION_METHOD(Method, Event, Reply)                                     \
  grpc::ServerUnaryReactor* Method(Context* context, const v1::Method##Request* request, \
                                   v1::Method##Response* response) override {            \
    return SessionCall<Reply>(service_, context, *request, response);                    \
  }                                                                                      \
  MEMTIDE_CALL_MESSAGES(Method, v1::Method##Request, v1::Method##Response)

#define MEMTIDE_SERVICE(Service, VERBS)                                              \
  class Service##Handlers final : public v1::Service::CallbackService {              \
   public:                                                                           \
    explicit Service##Handlers(const ServiceContext* service) : service_(service) {} \
    VERBS(MEMTIDE_SESSION_METHOD)                                                    \
   private:                                                                          \
    const ServiceContext* const service_;                                            \
  }
MEMTIDE_SERVICE(SessionService, MEMTIDE_SESSION_VERBS);
MEMTIDE_SERVICE(ChunkService, MEMTIDE_CHUNK_VERBS);
MEMTIDE_SERVICE(OptimizerService, MEMTIDE_OPTIMIZER_VERBS);
#undef MEMTIDE_SERVICE
#undef MEMTIDE_SESSION_METHOD

// No call needs a session, so that operators can look at a node that has its limit of sessions.
class AdminServiceHandlers final : public v1::AdminService::CallbackService {
 public:
  explicit AdminServiceHandlers(const ServiceContext* service) : service_(service) {}

  grpc::ServerUnaryReactor* InspectNode(Context* context, const v1::InspectNodeRequest* request,
                                        v1::InspectNodeResponse*) override {
    auto* const messages = MessagesOf<v1::InspectNodeRequest, v1::InspectNodeResponse>(context);
    const bool lists = request->sessions() || request->max_chunks() > 0;
    const auto caller = Begin<v1::InspectNodeRequest>(service_, *context, messages,
                                                      lists ? kListingBytes : kSumsBytes);
    if (!caller.ok()) return FinishNow(context, caller.status());
    auto event = ToEvent(*request, service_->node);
    if (!event.ok()) return FinishNow(context, event.status());
    event->caller = Owner{caller->uid, GroupsOf(caller->fd)};
    if (!IsAdministrator(*event->caller)) event->viewer = caller->uid;
    return PostCall<InspectReply>(service_, context, *event, messages);
  }

  grpc::ServerUnaryReactor* GetTrace(Context* context, const v1::GetTraceRequest* request,
                                     v1::Trace*) override {
    auto* const messages = MessagesOf<v1::GetTraceRequest, v1::Trace>(context);
    const auto caller = Begin<v1::GetTraceRequest>(service_, *context, messages);
    if (!caller.ok()) return FinishNow(context, caller.status());
    const absl::Status room = service_->calls->BeginTrace(*messages->charge(), Now());
    if (!room.ok()) return FinishNow(context, room);
    auto event = ToEvent(*request, service_->node);
    if (!event.ok()) return FinishNow(context, event.status());
    if (!IsOperator(caller->uid)) event->viewer = caller->uid;
    return PostCall<TraceReply>(service_, context, *event, messages);
  }

  grpc::ServerUnaryReactor* Drain(Context* context, const v1::DrainRequest* request,
                                  v1::DrainResponse*) override {
    auto* const messages = MessagesOf<v1::DrainRequest, v1::DrainResponse>(context);
    const absl::Status begun = BeginAsAdministrator<v1::DrainRequest>(*context, messages);
    if (!begun.ok()) return FinishNow(context, begun);
    const auto event = ToEvent(*request, service_->node);
    if (!event.ok()) return FinishNow(context, event.status());
    return PostCall<std::monostate>(service_, context, *event, messages);
  }

  grpc::ServerUnaryReactor* EndJob(Context* context, const v1::EndJobRequest* request,
                                   v1::EndJobResponse*) override {
    auto* const messages = MessagesOf<v1::EndJobRequest, v1::EndJobResponse>(context);
    const auto caller = Begin<v1::EndJobRequest>(service_, *context, messages);
    if (!caller.ok()) return FinishNow(context, caller.status());
    auto event = ToEvent(*request, service_->node);
    if (!event.ok()) return FinishNow(context, event.status());
    if (!IsAdministrator({caller->uid, GroupsOf(caller->fd)})) event->viewer = caller->uid;
    return PostCall<EndJobReply>(service_, context, *event, messages);
  }

  grpc::ServerUnaryReactor* SetQuota(Context* context, const v1::SetQuotaRequest* request,
                                     v1::SetQuotaResponse*) override {
    auto* const messages = MessagesOf<v1::SetQuotaRequest, v1::SetQuotaResponse>(context);
    const absl::Status begun = BeginAsAdministrator<v1::SetQuotaRequest>(*context, messages);
    if (!begun.ok()) return FinishNow(context, begun);
    return Tell(context, service_->quotas->Set(*request), messages);
  }

  grpc::ServerUnaryReactor* ClearQuota(Context* context, const v1::ClearQuotaRequest* request,
                                       v1::ClearQuotaResponse*) override {
    auto* const messages = MessagesOf<v1::ClearQuotaRequest, v1::ClearQuotaResponse>(context);
    const absl::Status begun = BeginAsAdministrator<v1::ClearQuotaRequest>(*context, messages);
    if (!begun.ok()) return FinishNow(context, begun);
    return Tell(context, service_->quotas->Clear(request->subject()), messages);
  }

  grpc::ServerUnaryReactor* GetMetrics(Context* context, const v1::GetMetricsRequest*,
                                       v1::GetMetricsResponse*) override {
    auto* const messages = MessagesOf<v1::GetMetricsRequest, v1::GetMetricsResponse>(context);
    const auto caller = Begin<v1::GetMetricsRequest>(service_, *context, messages, kSumsBytes);
    if (!caller.ok()) return FinishNow(context, caller.status());
    if (absl::optional<std::string> text = service_->metrics->Recent(Now())) {
      messages->response()->set_text(*std::move(text));
      messages->charge()->SetReply(messages->response()->ByteSizeLong());
      return FinishNow(context, absl::OkStatus());
    }
    InspectCall event;
    event.jobs = true;  // And quotas.
    return PostCall<InspectReply>(service_, context, std::move(event), messages);
  }

  MEMTIDE_CALL_MESSAGES(InspectNode, v1::InspectNodeRequest, v1::InspectNodeResponse)
  MEMTIDE_CALL_MESSAGES(GetTrace, v1::GetTraceRequest, v1::Trace)
  MEMTIDE_CALL_MESSAGES(GetMetrics, v1::GetMetricsRequest, v1::GetMetricsResponse)
  MEMTIDE_CALL_MESSAGES(Drain, v1::DrainRequest, v1::DrainResponse)
  MEMTIDE_CALL_MESSAGES(EndJob, v1::EndJobRequest, v1::EndJobResponse)
  MEMTIDE_CALL_MESSAGES(SetQuota, v1::SetQuotaRequest, v1::SetQuotaResponse)
  MEMTIDE_CALL_MESSAGES(ClearQuota, v1::ClearQuotaRequest, v1::ClearQuotaResponse)

 private:
  bool IsOperator(uint32_t uid) const { return uid == 0 || uid == service_->daemon_uid; }
  bool IsAdministrator(const Owner& caller) const {
    const std::vector<uint32_t>& groups = caller.groups;
    return IsOperator(caller.uid) ||
           (service_->admin_group &&
            std::find(groups.begin(), groups.end(), *service_->admin_group) != groups.end());
  }
  // A call that concerns all users. PERMISSION_DENIED: the caller may not make it.
  template <typename Request, typename Messages>
  absl::Status BeginAsAdministrator(const Context& context, Messages* messages) {
    MEMTIDE_ASSIGN_OR_RETURN(const OpenCalls::Caller caller,
                             Begin<Request>(service_, context, messages));
    if (IsAdministrator({caller.uid, GroupsOf(caller.fd)})) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(
        "uid ", caller.uid, " does not administer this node; root, uid ", service_->daemon_uid,
        service_->admin_group ? absl::StrCat(" and the members of group ", *service_->admin_group)
                              : "",
        " do (NodeConfig.admin_group)"));
  }
  // Tells the engine what holds now, and answers with it.
  template <typename Messages>
  grpc::ServerUnaryReactor* Tell(Context* context, absl::StatusOr<QuotaBook::Change> change,
                                 Messages* messages) {
    if (!change.ok()) return FinishNow(context, change.status());
    *messages->response()->mutable_quota() = ToProto(change->quota);
    messages->response()->set_outlives_daemon(change->outlives_daemon);
    SetQuotasCall event;
    event.number = change->number;
    event.quotas = std::move(change->quotas);
    return PostCall<std::monostate>(service_, context, std::move(event), messages);
  }

  const ServiceContext* const service_;
};

#undef MEMTIDE_CALL_MESSAGES

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

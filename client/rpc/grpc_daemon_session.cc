#include "client/rpc/grpc_daemon_session.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "client/rpc/default_chunk_size.h"
#include "client/rpc/grpc_call.h"
#include "client/rpc/to_proto.h"

namespace memtide::client {
namespace {

// The daemon replies to Open when all of the job's memory is prepared, which takes minutes for
// large shares.
constexpr Duration kOpenTimeout = std::chrono::minutes(10);
// A call may be answered before the frame arrives that says why its session ended.
constexpr Duration kPatienceForReason = std::chrono::seconds(2);
// A program that offers chunks waits this long for host memory in which they are compared.
constexpr Duration kOfferDeadline = std::chrono::seconds(10);

ChunksAhead ToChunksAhead(const v1::ChunksAhead& proto) {
  ChunksAhead ahead;
  for (const uint64_t id : proto.reads()) ahead.reads.emplace_back(id);
  for (const uint64_t id : proto.writes()) ahead.writes.emplace_back(id);
  ahead.more_come = proto.more_come();
  return ahead;
}

}  // namespace

template <typename Body>
absl::Status GrpcDaemonSession::ForEachBatch(absl::Span<const ChunkId> chunks, Body body) const {
  const size_t batch = limits_.chunks_per_call;
  for (size_t first = 0; first < chunks.size(); first += batch) {
    MEMTIDE_RETURN_IF_ERROR(body(chunks.subspan(first, batch)));
  }
  return absl::OkStatus();
}

template <typename Request>
absl::Status GrpcDaemonSession::SendInBatches(const Request& request,
                                              absl::Span<const ChunkId> chunks, Duration timeout) {
  return ForEachBatch(chunks, [&](absl::Span<const ChunkId> batch) {
    Request one = request;
    AddIds(batch, one.mutable_chunk_ids());
    return Send(std::move(one), timeout).status();
  });
}

GrpcDaemonSession::GrpcDaemonSession(DaemonAddress address) : address_(std::move(address)) {}

GrpcDaemonSession::~GrpcDaemonSession() { Close(); }

absl::StatusOr<Job> GrpcDaemonSession::Open(const v1::OpenRequest& request,
                                            DaemonSessionEvents* events) {
  MEMTIDE_CHECK(!socket_.has_value());
  events_ = events;
  MEMTIDE_ASSIGN_OR_RETURN(FdSocket socket,
                           FdSocket::Connect(address_.socket_dir, address_.program));
  socket_.emplace(std::move(socket));
  token_ = socket_->welcome().token();
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(socket_->welcome().grpc_target());
  stubs_ = {v1::SessionService::NewStub(channel), v1::ChunkService::NewStub(channel),
            v1::OptimizerService::NewStub(channel), v1::AdminService::NewStub(channel)};
  // The reader starts before Open is sent: the job's regions arrive before the reply.
  reader_ = std::thread([this] { ReadEvents(); });
  pthread_setname_np(reader_.native_handle(), "memtide-events");
  MEMTIDE_ASSIGN_OR_RETURN(const v1::OpenResponse reply, OpenJob(request));
  const Duration lease = std::chrono::seconds(reply.session_lease().seconds()) +
                         std::chrono::nanoseconds(reply.session_lease().nanos());
  // Two renewals may be lost before the session ends.
  renewer_ = std::thread([this, lease] { RenewUntilClosed(lease / 3); });
  pthread_setname_np(renewer_.native_handle(), "memtide-renew");
  Job job;
  MEMTIDE_ASSIGN_OR_RETURN(limits_, ReadLimits(reply.limits()));
  job.limits = limits_;
  job.id = reply.job_id();
  job.session_id = reply.session_id();
  job.chunk_size = Bytes(reply.chunk_size_bytes());
  job.device_slots = reply.device_slots();
  job.host_slots = reply.host_slots();
  job.ssd_slots = reply.ssd_slots();
  job.max_chunks = reply.max_chunks();
  job.lease_budget = reply.lease_budget();
  job.device_memory = FromProto(reply.device_memory());
  job.device_number = reply.device_number();
  job.cuda_device_uuid = reply.cuda_device_uuid();
  job.cuda_maps_when_idle = reply.cuda_maps_when_idle();
  job.committed = {reply.committed_step(), reply.step_manifest()};
  has_ssd_ = job.ssd_slots > 0;
  return job;
}

absl::StatusOr<v1::OpenResponse> GrpcDaemonSession::OpenJob(v1::OpenRequest request) {
  // This affects only shares of zero: a share whose size the request names is fixed.
  request.set_elastic(true);
  if (request.chunk_size_bytes() == 0) {
    // An existing job has a chunk size, which a request with size zero adopts.
    if (!request.job_name().empty()) {
      absl::StatusOr<v1::OpenResponse> joined = Send(request, kOpenTimeout);
      if (!absl::IsInvalidArgument(joined.status())) return joined;
    }
    MEMTIDE_ASSIGN_OR_RETURN(const v1::InspectNodeResponse node,
                             Send(v1::InspectNodeRequest(), kShortCallTimeout));
    request.set_chunk_size_bytes(DefaultChunkSize(request, node).count());
  }
  return Send(std::move(request), kOpenTimeout);
}

void GrpcDaemonSession::Close() {
  if (!socket_.has_value()) return;
  {
    const MutexLock lock(&mutex_);
    if (closing_) return;
    closing_ = true;
  }
  changed_.SignalAll();
  // Join the renewer first, so that no renewal follows the Close call.
  if (renewer_.joinable()) renewer_.join();
  if (StubFor<v1::CloseRequest>() != nullptr) {
    v1::CloseResponse reply;
    // Best effort: closing the socket ends the session even if this call fails.
    Call(StubFor<v1::CloseRequest>(), &v1::SessionService::Stub::Close, token_, kReplyGrace,
         v1::CloseRequest(), &reply)
        .IgnoreError();
  }
  socket_->Shutdown();
  if (reader_.joinable()) reader_.join();
}

absl::StatusOr<std::vector<ChunkId>> GrpcDaemonSession::Allocate(uint32_t count, ChunkKind kind,
                                                                 InitialContent initial_content,
                                                                 HomeTier home) {
  std::vector<ChunkId> chunks;
  while (chunks.size() < count) {
    v1::AllocateRequest request;
    request.set_count(
        static_cast<uint32_t>(std::min<size_t>(count - chunks.size(), limits_.chunks_per_call)));
    request.set_kind(ToProto(kind));
    request.set_undefined(initial_content == InitialContent::kUndefined);
    if (home == HomeTier::kHost) request.set_home_tier(v1::TIER_HOST);
    const uint32_t chunk_count = request.count();
    const absl::StatusOr<v1::AllocateResponse> reply = Send(std::move(request), kShortCallTimeout);
    absl::Status status = reply.status();
    if (status.ok() && reply->chunk_ids_size() != static_cast<int>(chunk_count)) {
      status =
          absl::InternalError("the daemon allocated a different number of chunks than requested");
    }
    if (!status.ok()) {
      Free(chunks).IgnoreError();  // All or none.
      return status;
    }
    for (const uint64_t id : reply->chunk_ids()) chunks.push_back(ChunkId(id));
  }
  return chunks;
}

absl::Status GrpcDaemonSession::Free(absl::Span<const ChunkId> chunks) {
  return SendInBatches(v1::FreeRequest(), chunks, kShortCallTimeout);
}

absl::Status GrpcDaemonSession::Discard(absl::Span<const ChunkId> chunks) {
  return SendInBatches(v1::DiscardRequest(), chunks, kShortCallTimeout);
}

absl::StatusOr<OfferResult> GrpcDaemonSession::Offer(absl::Span<const ChunkId> chunks) {
  OfferResult result;
  const auto offer = [&](absl::Span<const ChunkId> batch) {
    v1::OfferRequest request;
    AddIds(batch, request.mutable_chunk_ids());
    const Duration deadline = std::min(limits_.max_wait, kOfferDeadline);
    SetDuration(deadline, request.mutable_deadline());
    MEMTIDE_ASSIGN_OR_RETURN(const v1::OfferResponse reply,
                             Send(std::move(request), limits_.max_wait + kReplyGrace));
    const size_t first = batch.data() - chunks.data();
    const auto add = [&](const auto& numbers, std::vector<size_t>* to) {
      for (const uint32_t number : numbers) {
        if (number < batch.size()) to->push_back(first + number);
      }
    };
    add(reply.shared(), &result.shared);
    add(reply.leased(), &result.leased);
    return absl::OkStatus();
  };
  MEMTIDE_RETURN_IF_ERROR(ForEachBatch(chunks, offer));
  return result;
}

absl::Status GrpcDaemonSession::OfferWhenWritten(absl::Span<const ChunkId> chunks) {
  v1::OfferRequest request;
  request.set_repeats(true);
  return SendInBatches(request, chunks, kShortCallTimeout);
}

// In one call, as what is duplicated together has to be written together.
absl::StatusOr<std::vector<ChunkId>> GrpcDaemonSession::Duplicate(absl::Span<const ChunkId> chunks,
                                                                  uint32_t copies) {
  v1::DuplicateRequest request;
  AddIds(chunks, request.mutable_chunk_ids());
  request.set_copies(copies);
  MEMTIDE_ASSIGN_OR_RETURN(const v1::DuplicateResponse reply,
                           Send(std::move(request), limits_.max_wait + kReplyGrace));
  if (static_cast<size_t>(reply.chunk_ids_size()) != chunks.size() * copies) {
    return absl::InternalError("the daemon made a different number of duplicates than requested");
  }
  std::vector<ChunkId> made;
  for (const uint64_t id : reply.chunk_ids()) made.emplace_back(id);
  return made;
}

absl::StatusOr<FetchResult> GrpcDaemonSession::Fetch(const FetchOptions& options) {
  FetchResult fetched;
  // If the releases do not fit into the first request, they are sent ahead of it.
  absl::Span<const ChunkId> releases = options.releases;
  if (releases.size() > limits_.chunks_per_call) {
    MEMTIDE_RETURN_IF_ERROR(Release(releases));
    releases = {};
  }
  absl::Span<const Moment> moments = options.moments;
  const absl::Span<const ChunkId> all = options.chunks;
  const absl::Status status = ForEachBatch(all, [&](absl::Span<const ChunkId> batch) {
    const absl::Status some = FetchBatch(options, {batch, releases, moments}, &fetched);
    releases = {};
    moments = {};
    return some;
  });
  if (status.ok()) return fetched;
  // All or none: end the leases of the batches that succeeded. Read leases that were to be upgraded
  // would end too, but no request upgrades more than chunks_per_call held chunks.
  const size_t granted = fetched.leases.size();
  if (granted > 0) Release(all.subspan(0, granted)).IgnoreError();
  return status;
}

absl::Status GrpcDaemonSession::FetchBatch(const FetchOptions& options, const Batch& batch,
                                           FetchResult* fetched) {
  v1::FetchRequest request;
  AddIds(batch.chunks, request.mutable_chunk_ids());
  AddIds(batch.releases, request.mutable_release_chunk_ids());
  AddMoments(batch.moments, request.mutable_moments());
  request.set_access(ToProto(options.access));
  request.set_wait_policy(options.wait_policy == WaitPolicy::kNoWait ? v1::WAIT_POLICY_NO_WAIT
                                                                     : v1::WAIT_POLICY_WAIT);
  Duration wait = limits_.max_wait;
  if (options.deadline > Duration::zero()) {
    wait = std::min(options.deadline, limits_.max_wait);
    SetDuration(wait, request.mutable_deadline());
  }
  MEMTIDE_ASSIGN_OR_RETURN(
      const v1::FetchResponse reply,
      Send(std::move(request),
           options.wait_policy == WaitPolicy::kNoWait ? kShortCallTimeout : wait + kReplyGrace));
  if (reply.leases_size() != static_cast<int>(batch.chunks.size())) {
    return absl::InternalError("the daemon granted a different number of leases than requested");
  }
  for (const v1::Lease& lease : reply.leases()) {
    fetched->leases.push_back(
        {ChunkId(lease.chunk_id()), RegionId(lease.region_id()), Bytes(lease.offset_bytes())});
  }
  // The last batch's hints include all leases, so they replace those of earlier batches.
  fetched->eviction_hints.clear();
  for (const uint64_t id : reply.eviction_hints()) fetched->eviction_hints.emplace_back(id);
  fetched->leaving = reply.leaving();
  fetched->ahead = ToChunksAhead(reply.ahead());
  return absl::OkStatus();
}

absl::StatusOr<ChunksAhead> GrpcDaemonSession::Report(const std::vector<Moment>& moments) {
  v1::ReportRequest request;
  AddMoments(moments, request.mutable_moments());
  MEMTIDE_ASSIGN_OR_RETURN(const v1::ReportResponse reply,
                           Send(std::move(request), kShortCallTimeout));
  return ToChunksAhead(reply.ahead());
}

absl::Status GrpcDaemonSession::Release(absl::Span<const ChunkId> chunks) {
  return SendInBatches(v1::ReleaseRequest(), chunks, kShortCallTimeout);
}

absl::Status GrpcDaemonSession::Evict(absl::Span<const ChunkId> chunks) {
  v1::EvictRequest request;
  request.set_tier(has_ssd_ ? v1::TIER_SSD : v1::TIER_HOST);
  return SendInBatches(request, chunks, limits_.max_wait);
}

absl::StatusOr<DeviceShare> GrpcDaemonSession::Resize(Bytes device_share, Duration deadline) {
  v1::ResizeRequest request;
  request.set_device_share_bytes(device_share.count());
  // The daemon refuses a longer deadline.
  const Duration wait = std::min(deadline, limits_.max_wait);
  SetDuration(wait, request.mutable_deadline());
  MEMTIDE_ASSIGN_OR_RETURN(const v1::ResizeResponse reply,
                           Send(std::move(request), wait + kReplyGrace));
  return DeviceShare{reply.device_slots(), reply.lease_budget()};
}

absl::StatusOr<std::vector<uint64_t>> GrpcDaemonSession::Versions(
    absl::Span<const ChunkId> chunks) {
  std::vector<uint64_t> versions;
  MEMTIDE_RETURN_IF_ERROR(ForEachBatch(chunks, [&](absl::Span<const ChunkId> batch) {
    v1::DescribeRequest request;
    AddIds(batch, request.mutable_chunk_ids());
    MEMTIDE_ASSIGN_OR_RETURN(const v1::DescribeResponse reply,
                             Send(std::move(request), kShortCallTimeout));
    for (const v1::ChunkInfo& chunk : reply.chunks()) versions.push_back(chunk.version());
    return absl::OkStatus();
  }));
  if (versions.size() != chunks.size()) {
    return absl::InternalError("the daemon described a different number of chunks than requested");
  }
  return versions;
}

absl::Status GrpcDaemonSession::ReturnRegions(const std::vector<RegionId>& regions) {
  v1::ReturnRegionsRequest request;
  for (const RegionId region : regions) request.add_region_ids(region.value());
  return Send(std::move(request), kShortCallTimeout).status();
}

absl::Status GrpcDaemonSession::WithLossReason(absl::Status status) {
  if (status.ok()) return status;
  const bool peer_closed = absl::IsUnavailable(status) && socket_->PeerClosed();
  const MutexLock lock(&mutex_);
  // The reader thread will see the closed socket too, and sets the more precise reason.
  while (peer_closed && lost_.ok() && !closing_) changed_.Wait(&mutex_);
  if (!absl::IsUnauthenticated(status)) return lost_.ok() ? status : lost_;
  // The session has ended: the daemon has closed the socket, or is about to.
  const Instant until = Now() + kPatienceForReason;
  for (Instant now = Now(); now < until && lost_.ok() && !closing_; now = Now()) {
    changed_.WaitFor(&mutex_, until - now);
  }
  return lost_.ok() ? status : lost_;
}

void GrpcDaemonSession::ReadEvents() {
  while (true) {
    absl::StatusOr<FdSocket::Received> received = socket_->Receive();
    absl::Status status = received.status();
    if (status.ok() && received->frame.has_refused()) {
      const v1::FdRefused& refused = received->frame.refused();
      status = absl::UnavailableError(
          absl::StrCat("the memtide daemon ended this session: ", refused.message()));
    }
    if (!status.ok()) {
      {
        const MutexLock lock(&mutex_);
        if (closing_) return;
        lost_ = status;
      }
      changed_.SignalAll();
      events_->Lost(status);
      return;
    }
    // Frames of other kinds are ignored: a newer daemon may send them.
    if (received->frame.has_region()) {
      const v1::FdRegion& region = received->frame.region();
      events_->RegionArrived(RegionId(region.region_id()),
                             {FromProto(region.memory()), Bytes(region.size_bytes()),
                              std::move(received->descriptor), region.cuda_ipc_handle(), nullptr});
    } else if (received->frame.has_region_gone()) {
      const v1::FdRegionGone& gone = received->frame.region_gone();
      events_->RegionGone(RegionId(gone.region_id()), {gone.device_slots(), gone.lease_budget()});
    } else if (received->frame.has_lease_budget()) {
      const v1::FdLeaseBudget& budget = received->frame.lease_budget();
      events_->LeaseBudgetChanged({budget.slots(), budget.leases(), budget.max_in_use()});
    } else if (received->frame.has_revoke()) {
      const v1::FdRevoke& revoke = received->frame.revoke();
      Revocation revocation;
      revocation.additional = revoke.count();
      for (const uint64_t id : revoke.chunk_ids()) revocation.chunks.push_back(ChunkId(id));
      events_->RevokeRequested(revocation);
    }
  }
}

void GrpcDaemonSession::RenewUntilClosed(Duration interval) {
  mutex_.Lock();
  while (!closing_ && lost_.ok()) {
    if (interval <= Duration::zero()) {
      changed_.Wait(&mutex_);  // The daemon requires no renewals.
      continue;
    }
    const bool signalled = changed_.WaitFor(&mutex_, interval);
    if (signalled || closing_) continue;
    mutex_.Unlock();
    v1::RenewResponse reply;
    // A failure means that the session ended, which the reader thread reports.
    Call(StubFor<v1::RenewRequest>(), &v1::SessionService::Stub::Renew, token_, interval,
         v1::RenewRequest(), &reply)
        .IgnoreError();
    mutex_.Lock();
  }
  mutex_.Unlock();
}

}  // namespace memtide::client

// GrpcDaemonSession: the DaemonSession of a real daemon, over its two sockets.
//
// A reader thread receives frames from the fd socket (regions, revocations, the end of the
// session). A renewing thread sends a heartbeat every third of the session's lease. Calls are
// blocking gRPC calls that carry the session's token. Thread-safe after Open.
#ifndef MEMTIDE_CLIENT_RPC_GRPC_DAEMON_SESSION_H_
#define MEMTIDE_CLIENT_RPC_GRPC_DAEMON_SESSION_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/rpc/daemon_session.h"
#include "client/rpc/fd_socket.h"
#include "client/rpc/grpc_call.h"
#include "client/rpc/method_of.h"

namespace memtide::client {

class GrpcDaemonSession : public DaemonSession {
 public:
  explicit GrpcDaemonSession(DaemonAddress address);
  ~GrpcDaemonSession() override;  // Calls Close().

  absl::StatusOr<Job> Open(const v1::OpenRequest& request, DaemonSessionEvents* events) override;
  void Close() override;
  absl::StatusOr<std::vector<ChunkId>> Allocate(uint32_t count, ChunkKind kind,
                                                InitialContent initial_content,
                                                HomeTier home) override;
  absl::Status Free(absl::Span<const ChunkId> chunks) override;
  absl::StatusOr<FetchResult> Fetch(const FetchOptions& options) override;
  absl::StatusOr<ChunksAhead> Report(const std::vector<Moment>& moments) override;
  absl::Status Release(absl::Span<const ChunkId> chunks) override;
  absl::Status Evict(absl::Span<const ChunkId> chunks) override;
  absl::Status Discard(absl::Span<const ChunkId> chunks) override;
  absl::StatusOr<OfferResult> Offer(absl::Span<const ChunkId> chunks) override;
  absl::Status OfferWhenWritten(absl::Span<const ChunkId> chunks) override;
  absl::StatusOr<std::vector<ChunkId>> Duplicate(absl::Span<const ChunkId> chunks,
                                                 uint32_t copies) override;
  absl::StatusOr<DeviceShare> Resize(Bytes device_share, Duration deadline) override;
  absl::StatusOr<LentPart> StartPart(const OwnPart& part, absl::Span<const ChunkId> chunks,
                                     const std::vector<Moment>& moments) override;
  absl::Status EndPart(uint64_t id, const PartResult& result) override;
  absl::Status Commit(const CommitRequest& commit, absl::Span<const ChunkId> chunks,
                      absl::Span<const ChunkId> shadows) override;
  absl::StatusOr<std::vector<uint64_t>> Versions(absl::Span<const ChunkId> chunks) override;
  absl::Status ReturnRegions(const std::vector<RegionId>& regions) override;

 private:
  // Calls `body` with batches of at most chunks_per_call chunks, until one fails.
  template <typename Body>
  absl::Status ForEachBatch(absl::Span<const ChunkId> chunks, Body body) const;
  // Calls with `request` and each batch, until one fails.
  template <typename Request>
  absl::Status SendInBatches(const Request& request, absl::Span<const ChunkId> chunks,
                             Duration timeout);
  absl::StatusOr<v1::OpenResponse> OpenJob(v1::OpenRequest request);
  // Added to the deadline that the daemon observes, so that its own DEADLINE_EXCEEDED arrives
  // first.
  static constexpr Duration kReplyGrace = std::chrono::seconds(10);
  // The timeout of calls that the daemon answers without waiting for transfers.
  static constexpr Duration kShortCallTimeout = std::chrono::seconds(60);

  template <typename Request, typename = void>
  struct HasRequestId : std::false_type {};
  template <typename Request>
  struct HasRequestId<Request, std::void_t<decltype(std::declval<Request>().request_id())>>
      : std::true_type {};
  template <typename Request>
  typename MethodOf<Request>::Stub* StubFor() const {
    return std::get<std::unique_ptr<typename MethodOf<Request>::Stub>>(stubs_).get();
  }
  // Calls the daemon, and returns its response.
  template <typename Request>
  absl::StatusOr<typename MethodOf<Request>::Response> Send(Request request, Duration timeout) {
    if constexpr (HasRequestId<Request>::value) {
      request.set_request_id(next_request_id_.fetch_add(1));
    }
    typename MethodOf<Request>::Response response;
    MEMTIDE_RETURN_IF_ERROR(WithLossReason(
        Call(StubFor<Request>(), MethodOf<Request>::kMethod, token_, timeout, request, &response)));
    return response;
  }
  struct Batch {
    absl::Span<const ChunkId> chunks, releases;
    absl::Span<const Moment> moments;
  };
  absl::Status FetchBatch(const FetchOptions& options, const Batch& batch, FetchResult* fetched);
  // Replaces the error of a call by the reason of the session's loss, which explains more, if the
  // session is lost.
  absl::Status WithLossReason(absl::Status status);
  void ReadEvents();
  void RenewUntilClosed(Duration interval);

  const DaemonAddress address_;
  DaemonSessionEvents* events_ = nullptr;
  absl::optional<FdSocket> socket_;
  std::string token_;
  bool has_ssd_ = false;
  DaemonLimits limits_;  // Set by Open.
  std::tuple<std::unique_ptr<v1::SessionService::Stub>, std::unique_ptr<v1::ChunkService::Stub>,
             std::unique_ptr<v1::OptimizerService::Stub>, std::unique_ptr<v1::AdminService::Stub>>
      stubs_;
  std::thread reader_, renewer_;
  // The next request_id. Each call has its own, so the daemon never takes one call for a repetition
  // of another.
  std::atomic<uint64_t> next_request_id_{1};

  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_GRPC_DAEMON_SESSION_H_

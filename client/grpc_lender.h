// GrpcLender: the Lender that talks to a real daemon, over its two sockets.
//
// A reader thread receives what comes on the fd socket (regions, revocations, the end); a renewing
// thread says every third of the session's lease that we live. Calls are blocking stubs and carry
// the session's token. Thread-safe after Open.
#ifndef MEMTIDE_CLIENT_GRPC_LENDER_H_
#define MEMTIDE_CLIENT_GRPC_LENDER_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/types/optional.h"
#include "base/mutex.h"
#include "client/fd_socket.h"
#include "client/lender.h"
#include "memtide/v1/admin.grpc.pb.h"
#include "memtide/v1/chunks.grpc.pb.h"
#include "memtide/v1/optimizer.grpc.pb.h"
#include "memtide/v1/session.grpc.pb.h"

namespace memtide::client {

class GrpcLender : public Lender {
 public:
  struct Options {
    std::string socket_dir;  // Where the daemon's fd.sock is.
    std::string program;     // For people.
  };

  explicit GrpcLender(Options options);
  ~GrpcLender() override;  // Closes.

  absl::StatusOr<Job> Open(const JobOptions& options, LenderEvents* events) override;
  void Close() override;
  absl::StatusOr<std::vector<ChunkId>> Allocate(uint32_t count, ChunkKind kind,
                                                Unwritten unwritten) override;
  absl::Status Free(absl::Span<const ChunkId> chunks) override;
  absl::StatusOr<Fetched> Fetch(const FetchOptions& options) override;
  absl::Status Report(const std::vector<Moment>& moments) override;
  absl::Status Release(absl::Span<const ChunkId> chunks) override;
  absl::Status Evict(absl::Span<const ChunkId> chunks) override;
  absl::Status Prefetch(absl::Span<const ChunkId> chunks) override;
  absl::StatusOr<Resized> Resize(Bytes device_share, Duration deadline) override;
  absl::StatusOr<uint64_t> Step(const StepPart& part, absl::Span<const ChunkId> chunks,
                                const std::vector<Moment>& moments) override;
  absl::Status Publish(const Publication& publication, absl::Span<const ChunkId> chunks,
                       absl::Span<const ChunkId> fresh) override;
  absl::StatusOr<std::vector<uint64_t>> Versions(absl::Span<const ChunkId> chunks) override;
  absl::Status ReturnRegions(const std::vector<RegionId>& regions) override;

 private:
  absl::StatusOr<v1::OpenResponse> OpenJob(const JobOptions& options);
  absl::StatusOr<v1::OpenResponse> SendOpen(const JobOptions& options);
  struct Batch {
    absl::Span<const ChunkId> chunks, releases;
    absl::Span<const Moment> moments;
  };
  absl::Status FetchSome(const FetchOptions& options, const Batch& batch, Fetched* fetched);
  // What is wrong when a call failed: the session's loss explains more than gRPC does.
  absl::Status Explain(absl::Status status);
  void ReadEvents();
  void RenewUntilClosed(Duration interval);

  const Options options_;
  LenderEvents* events_ = nullptr;
  absl::optional<FdSocket> socket_;
  std::string token_;
  bool has_ssd_ = false;
  std::unique_ptr<v1::SessionService::Stub> session_;
  std::unique_ptr<v1::ChunkService::Stub> chunks_;
  std::unique_ptr<v1::OptimizerService::Stub> optimizer_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
  std::thread reader_, renewer_;
  // Of Allocate, Release and Free: new for each call, so that none can be taken for another.
  std::atomic<uint64_t> next_request_id_{1};

  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_GRPC_LENDER_H_

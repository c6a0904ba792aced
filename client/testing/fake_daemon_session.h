// FakeDaemonSession: a daemon in a few lines, for tests. It lends real shared memory from few slots
// (FakeChunks). A fetch waits while all slots are leased. Thread-safe.
#ifndef MEMTIDE_CLIENT_TESTING_FAKE_DAEMON_SESSION_H_
#define MEMTIDE_CLIENT_TESTING_FAKE_DAEMON_SESSION_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "client/rpc/daemon_session.h"
#include "client/testing/fake_chunks.h"

namespace memtide::client {

class FakeDaemonSession : public DaemonSession {
 public:
  struct Options {
    Bytes chunk_size = MiB(2);
    uint32_t slots = 4;
    uint32_t lease_budget = 3;
    uint32_t max_chunks = 64;
    DaemonLimits limits = {4096, 4096, 16384, 4, MiB(1), 64, std::chrono::minutes(1), 1};
  };
  struct Counts {
    uint64_t fetches = 0, releases = 0, evictions = 0, discards = 0;
    uint32_t leases = 0;
  };

  explicit FakeDaemonSession(const Options& options);

  absl::StatusOr<Job> Open(const v1::OpenRequest& request, DaemonSessionEvents* events) override;
  void Close() override;
  absl::StatusOr<std::vector<ChunkId>> Allocate(uint32_t count, ChunkKind kind,
                                                InitialContent initial_content,
                                                HomeTier home) override;
  absl::Status Free(absl::Span<const ChunkId> chunks) override;
  // Stores the reported moments. Returns the eviction hints of SetEvictionHints.
  absl::StatusOr<FetchResult> Fetch(const FetchOptions& options) override;
  absl::StatusOr<ChunksAhead> Report(const std::vector<Moment>& moments) override;
  absl::Status Release(absl::Span<const ChunkId> chunks) override;
  absl::Status Evict(absl::Span<const ChunkId> chunks) override;
  absl::Status Discard(absl::Span<const ChunkId> chunks) override;
  // Shares the chunks that are not leased.
  absl::StatusOr<OfferResult> Offer(absl::Span<const ChunkId> chunks) override;
  absl::Status OfferWhenWritten(absl::Span<const ChunkId> chunks) override;
  // Copies the bytes at once, and gives each chunk another place when it is first written.
  absl::StatusOr<std::vector<ChunkId>> Duplicate(absl::Span<const ChunkId> chunks,
                                                 uint32_t copies) override;
  // FAILED_PRECONDITION: its region never changes.
  absl::StatusOr<DeviceShare> Resize(Bytes device_share, Duration deadline) override;
  // The chunks of a part are leased until its end. Parts with contents are as AnswerNextPart says.
  absl::StatusOr<LentPart> StartPart(const OwnPart& part, absl::Span<const ChunkId> chunks,
                                     const std::vector<Moment>& moments) override;
  absl::Status EndPart(uint64_t id, const PartResult& result) override;
  absl::Status Commit(const CommitRequest& commit, absl::Span<const ChunkId> chunks,
                      absl::Span<const ChunkId> shadows) override;
  // Counts write leases and commits, like the daemon.
  absl::StatusOr<std::vector<uint64_t>> Versions(absl::Span<const ChunkId> chunks) override;
  absl::Status ReturnRegions(const std::vector<RegionId>& regions) override;

  // --- Faults and events ---

  // The next Fetch ends the leases it names, then leases nothing and returns `status`.
  void FailNextFetch(absl::Status status);
  // The next StartPart gets this answer. If another rank has made the part, its results are bytes
  // of kMade, which replace those of the written chunks.
  static constexpr unsigned char kMade = 0xAB;
  void AnswerNextPart(PartOutcome outcome);
  // The next StartPart has its effect, and returns UNAVAILABLE.
  void LoseNextPartReply();
  // Every Fetch takes `delay` from now on.
  void DelayFetches(Duration delay);
  // Delivers a revocation.
  void Revoke(const Revocation& revocation);
  // Delivers another region, and its end.
  void LendRegion(RegionId id);
  void EndRegion(RegionId id, const DeviceShare& share);
  // Delivers a lease budget.
  void ChangeLeaseBudget(const LeaseBudget& budget);
  // Blocks until the client has returned the region.
  void WaitForReturn(RegionId id);
  // Blocks until a Commit has been answered with ABORTED.
  void WaitForAbortedCommit();
  // Delivers the loss of the session; every call fails from now on.
  void EndSession(absl::Status reason);

  Counts counts() const;
  // Parts that ended as computed.
  uint32_t computed_parts() const;
  // The contents that the last StartPart named.
  absl::optional<PartContents> part_contents() const;
  // All moments reported so far.
  std::vector<Moment> moments() const;
  void SetEvictionHints(std::vector<ChunkId> eviction_hints);
  // Replies name these from now on.
  void SetAhead(ChunksAhead ahead);
  // Waits until `count` moments have arrived.
  void AwaitMoments(size_t count);
  // Blocks until exactly `leases` are held.
  void WaitForLeases(uint32_t leases);

 private:
  const Options options_;
  DaemonSessionEvents* events_ = nullptr;

  mutable Mutex mutex_;
  CondVar changed_;
  FakeChunks chunks_ ABSL_GUARDED_BY(mutex_);
  std::set<ChunkId> duplicated_ ABSL_GUARDED_BY(mutex_);  // And not written since.
  std::vector<RegionId> returned_ ABSL_GUARDED_BY(mutex_);
  Duration fetch_delay_ ABSL_GUARDED_BY(mutex_){0};
  absl::Status fail_next_fetch_ ABSL_GUARDED_BY(mutex_);
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
  bool commit_aborted_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, std::vector<ChunkId>> parts_ ABSL_GUARDED_BY(mutex_);  // Running parts.
  uint32_t computed_parts_ ABSL_GUARDED_BY(mutex_) = 0;
  PartOutcome next_part_ ABSL_GUARDED_BY(mutex_);
  bool lose_part_reply_ ABSL_GUARDED_BY(mutex_) = false;
  absl::optional<PartContents> part_contents_ ABSL_GUARDED_BY(mutex_);
  uint64_t fetches_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t releases_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t discards_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Moment> moments_ ABSL_GUARDED_BY(mutex_);
  std::vector<ChunkId> eviction_hints_ ABSL_GUARDED_BY(mutex_);
  ChunksAhead ahead_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_TESTING_FAKE_DAEMON_SESSION_H_

// FakeDaemonSession: a daemon in a few lines, for tests. It lends real shared memory from few
// slots.
//
// A fetched chunk is copied into a slot. If none is free, the chunk that was released longest ago
// is copied to a buffer, and its slot is overwritten with kScramble: a client that reads a lease
// after its release sees kScramble instead of the chunk's bytes. A fetch waits while all slots are
// leased. Thread-safe.
#ifndef MEMTIDE_CLIENT_TESTING_FAKE_DAEMON_SESSION_H_
#define MEMTIDE_CLIENT_TESTING_FAKE_DAEMON_SESSION_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/optional.h"
#include "base/mutex.h"
#include "client/rpc/daemon_session.h"

namespace memtide::client {

class FakeDaemonSession : public DaemonSession {
 public:
  static constexpr unsigned char kScramble = 0xDD;
  struct Options {
    Bytes chunk_size = MiB(2);
    uint32_t slots = 4;
    uint32_t lease_budget = 3;
    uint32_t max_chunks = 64;
    DaemonLimits limits = {4096, 4096, 16384, 4, 8192, MiB(1), 64, std::chrono::minutes(1), 1};
  };
  struct Counts {
    uint64_t fetches = 0, releases = 0, evictions = 0, discards = 0;
    uint32_t leases = 0;
  };

  explicit FakeDaemonSession(const Options& options);
  ~FakeDaemonSession() override;

  absl::StatusOr<Job> Open(const v1::OpenRequest& request, DaemonSessionEvents* events) override;
  void Close() override;
  absl::StatusOr<std::vector<ChunkId>> Allocate(uint32_t count, ChunkKind kind,
                                                InitialContent initial_content,
                                                HomeTier home) override;
  absl::Status Free(absl::Span<const ChunkId> chunks) override;
  // Stores the reported moments. Returns the eviction hints of SetEvictionHints.
  absl::StatusOr<FetchResult> Fetch(const FetchOptions& options) override;
  absl::Status Report(const std::vector<Moment>& moments) override;
  absl::Status Release(absl::Span<const ChunkId> chunks) override;
  absl::Status Evict(absl::Span<const ChunkId> chunks) override;
  absl::Status Prefetch(absl::Span<const ChunkId> chunks) override;
  absl::Status Discard(absl::Span<const ChunkId> chunks) override;
  // Shares the chunks that are not leased.
  absl::StatusOr<OfferResult> Offer(absl::Span<const ChunkId> chunks) override;
  // FAILED_PRECONDITION: its region never changes.
  absl::StatusOr<DeviceShare> Resize(Bytes device_share, Duration deadline) override;
  // Performs copies, but no update rule. The chunks of a part are leased until its end. Parts with
  // contents are as AnswerNextPart says.
  absl::StatusOr<uint64_t> Step(const StepPart& part, absl::Span<const ChunkId> chunks,
                                const std::vector<Moment>& moments) override;
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
  // What the last StartPart said of its contents.
  absl::optional<PartContents> part_contents() const;
  // All moments reported so far.
  std::vector<Moment> moments() const;
  void SetEvictionHints(std::vector<ChunkId> eviction_hints);
  // Blocks until exactly `leases` are held.
  void WaitForLeases(uint32_t leases);

 private:
  struct Chunk {
    absl::optional<uint32_t> slot;
    InitialContent initial_content = InitialContent::kZeros;
    bool leased = false;
    uint64_t version = 0;
    uint64_t released_at = 0;  // A count of releases, for the order of eviction.
    std::vector<char> buffer;  // Its bytes while it has no slot. Empty: never written.
  };

  // Returns a free slot, evicting a chunk if needed. nullopt: all slots are leased.
  absl::optional<uint32_t> FindSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MakeResident(const std::vector<ChunkId>& chunks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLease(Chunk* chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EvictChunk(Chunk* chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeContent(absl::Span<const ChunkId> chunks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  char* BytesOf(ChunkId chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  char* Slot(uint32_t slot) const { return memory_ + slot * options_.chunk_size.count(); }

  const Options options_;
  DaemonSessionEvents* events_ = nullptr;
  int fd_ = -1;
  char* memory_ = nullptr;

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<ChunkId, Chunk> chunks_ ABSL_GUARDED_BY(mutex_);
  std::vector<RegionId> returned_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::optional<ChunkId>> slots_ ABSL_GUARDED_BY(mutex_);
  Duration fetch_delay_ ABSL_GUARDED_BY(mutex_){0};
  absl::Status fail_next_fetch_ ABSL_GUARDED_BY(mutex_);
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
  bool commit_aborted_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, std::vector<ChunkId>> parts_ ABSL_GUARDED_BY(mutex_);  // Those not ended.
  uint32_t computed_parts_ ABSL_GUARDED_BY(mutex_) = 0;
  PartOutcome next_part_ ABSL_GUARDED_BY(mutex_);
  bool lose_part_reply_ ABSL_GUARDED_BY(mutex_) = false;
  absl::optional<PartContents> part_contents_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_chunk_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  std::vector<Moment> moments_ ABSL_GUARDED_BY(mutex_);
  std::vector<ChunkId> eviction_hints_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_TESTING_FAKE_DAEMON_SESSION_H_

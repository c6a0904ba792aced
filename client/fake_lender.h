// FakeLender: a daemon in a few lines, for tests. Lends real shared memory from few slots.
//
// A chunk that is fetched comes into a slot; when none is free the chunk that was released longest
// ago leaves for a buffer, and its slot is overwritten with kScramble first: whoever still looks at
// a lease that it gave back sees that instead of its bytes. A fetch waits while all slots are
// leased. Thread-safe.
#ifndef MEMTIDE_CLIENT_FAKE_LENDER_H_
#define MEMTIDE_CLIENT_FAKE_LENDER_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/optional.h"
#include "base/mutex.h"
#include "client/lender.h"

namespace memtide::client {

class FakeLender : public Lender {
 public:
  static constexpr unsigned char kScramble = 0xDD;
  struct Options {
    Bytes chunk_size = MiB(2);
    uint32_t slots = 4;
    uint32_t lease_budget = 3;
    uint32_t max_chunks = 64;
  };
  struct Counts {
    uint64_t fetches = 0, releases = 0, evictions = 0;
    uint32_t leases = 0;
  };

  explicit FakeLender(const Options& options);
  ~FakeLender() override;

  absl::StatusOr<Job> Open(const JobOptions& options, LenderEvents* events) override;
  void Close() override;
  absl::StatusOr<std::vector<ChunkId>> Allocate(uint32_t count, ChunkKind kind,
                                                Unwritten unwritten) override;
  absl::Status Free(absl::Span<const ChunkId> chunks) override;
  // Remembers the moments it is told of; `farthest` is what the test set.
  absl::StatusOr<Fetched> Fetch(const FetchOptions& options) override;
  absl::Status Report(const std::vector<Moment>& moments) override;
  absl::Status Release(absl::Span<const ChunkId> chunks) override;
  absl::Status Evict(absl::Span<const ChunkId> chunks) override;
  absl::Status Prefetch(absl::Span<const ChunkId> chunks) override;
  // Its one region never changes.
  absl::StatusOr<Resized> Resize(Bytes device_share, Duration deadline) override;
  // Does copies, and no arithmetic.
  absl::StatusOr<uint64_t> Step(const StepPart& part, absl::Span<const ChunkId> chunks,
                                const std::vector<Moment>& moments) override;
  absl::Status Publish(const Publication& publication, absl::Span<const ChunkId> chunks,
                       absl::Span<const ChunkId> fresh) override;
  // Counts what is published too, as the daemon does.
  absl::StatusOr<std::vector<uint64_t>> Versions(absl::Span<const ChunkId> chunks) override;
  absl::Status ReturnRegions(const std::vector<RegionId>& regions) override;

  // --- Faults and events ---

  // The next Fetch leases nothing and returns `status`, after it took the releases.
  void FailNextFetch(absl::Status status);
  // Every Fetch takes so long from now on.
  void DelayFetches(Duration delay);
  // Delivers a revocation.
  void Revoke(const Revocation& wanted);
  // Delivers another region, and that it has gone.
  void LendRegion(RegionId id);
  void TakeRegionAway(RegionId id, const Resized& left);
  // Delivers another budget.
  void ChangeLeaseBudget(uint32_t leases, uint32_t most_in_use = 0);
  // Returns when that region has been returned.
  void WaitForReturn(RegionId id);
  // Returns when a Publish was answered ABORTED.
  void WaitForAbortedPublish();
  // Every call fails from now on, and the loss is delivered.
  void EndSession(absl::Status reason);

  Counts counts() const;
  // What was told of uses, so far.
  std::vector<Moment> moments() const;
  void SetFarthest(std::vector<ChunkId> farthest);
  // Returns when exactly `leases` are held.
  void WaitForLeases(uint32_t leases);

 private:
  struct Chunk {
    absl::optional<uint32_t> slot;
    Unwritten unwritten = Unwritten::kZeros;
    bool leased = false;
    uint64_t version = 0;
    uint64_t released_at = 0;  // In calls, for the order of eviction.
    std::vector<char> buffer;  // Its bytes while it has no slot; empty: unwritten.
  };

  // A slot for `chunk`, by eviction if need be; nullopt: all are leased.
  absl::optional<uint32_t> FindSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool BringIn(const std::vector<ChunkId>& chunks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLease(Chunk* chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MoveOut(Chunk* chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  char* BytesOf(ChunkId chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  char* Slot(uint32_t slot) const { return memory_ + slot * options_.chunk_size.count(); }

  const Options options_;
  LenderEvents* events_ = nullptr;
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
  bool publish_aborted_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_chunk_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  std::vector<Moment> moments_ ABSL_GUARDED_BY(mutex_);
  std::vector<ChunkId> farthest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_FAKE_LENDER_H_

// LeaseClient: leases chunks, maps them at their places, and gives leases back.
//
// It joins the bookkeeping (LeaseCache), the addresses (AddressSpace) and the daemon
// (DaemonSession): it makes a plan under its lock, carries the plan out without the lock, and
// reports the outcome to the cache.
//
// Invariants, which keep other tenants of a slot away from this process's bytes and vice versa:
//   a place is unmapped before any call names its lease as released;
//   a place is mapped only after its lease is granted;
//   a place that a lost device failed to write is never released: the session ends with its lease.
//
// Thread safety: all methods may be called from any thread; RunReclaimer needs a thread of its own.
#ifndef MEMTIDE_CLIENT_LEASE_LEASE_CLIENT_H_
#define MEMTIDE_CLIENT_LEASE_LEASE_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/lease/access_log.h"
#include "client/lease/lease_cache.h"
#include "client/lease/region_table.h"
#include "client/memory/address_space.h"
#include "client/memory/place.h"
#include "client/rpc/daemon_session.h"

namespace memtide::client {

// The counters of memtide_stats.
struct LeaseStats {
  uint32_t chunks = 0, leases_held = 0, leases_in_use = 0, lease_budget = 0, slots = 0;
  uint64_t acquires = 0, acquire_hits = 0, faults = 0, upgrades = 0, releases = 0, calls = 0;
  Duration waited{0};
};

class LeaseClient {
 public:
  // The leases that a session may hold: at most `lease_budget`, and fewer than `slots`, because
  // without a free slot no chunk could ever move.
  static uint32_t Budget(uint32_t lease_budget, uint32_t slots);

  // A page fault that waits longer than this for its chunk ends the process. Reading a chunk from a
  // busy disk takes less than a second.
  static constexpr Duration kFaultTimeout = std::chrono::seconds(60);

  // A faulted chunk stays mapped at least as long as its fetch took, up to this time. If threads
  // access more chunks at once than can be leased, they would otherwise evict each other's chunks
  // before any of them could proceed.
  static constexpr Duration kMaxMinResidency = std::chrono::milliseconds(100);

  // `session`, `space` and `regions` must outlive the LeaseClient.
  LeaseClient(uint32_t places, const Job& job, DaemonSession* session, AddressSpace* space,
              RegionTable* regions);

  absl::StatusOr<PlaceRange> Allocate(uint32_t count, ChunkKind kind,
                                      InitialContent initial_content = InitialContent::kZeros,
                                      HomeTier home = HomeTier::kLowest);
  absl::Status Free(PlaceRange range);
  // Implements memtide_discard.
  absl::Status Discard(absl::Span<const PlaceId> places);
  // Implements memtide_offer: returns those of `places`, by their number, that share a content.
  absl::StatusOr<std::vector<size_t>> Offer(absl::Span<const PlaceId> places);
  // Implements memtide_offer_when_written.
  absl::Status OfferWhenWritten(absl::Span<const PlaceId> places);
  // Implements memtide_duplicate. Idle leases on the places end first. ABORTED: a chunk stays in
  // use.
  absl::StatusOr<PlaceRange> Duplicate(absl::Span<const PlaceId> places, uint32_t copies);

  // Implements memtide_acquire. Without a deadline it waits as long as the daemon allows; a
  // deadline of zero takes only what needs no wait.
  absl::Status Acquire(absl::Span<const PlaceId> places, Access access,
                       absl::optional<Duration> deadline = absl::nullopt);
  // Implements memtide_release.
  absl::Status EndUse(absl::Span<const PlaceId> places);
  // Handles a page fault: leases and maps the place and resumes the blocked threads. Also OK if the
  // place holds no chunk any more: the retried access is then the program's own segmentation fault.
  absl::Status HandleFault(PlaceId place, Access access);

  absl::Status Prefetch(absl::Span<const PlaceId> places);
  absl::Status Evict(absl::Span<const PlaceId> places);
  absl::Status Flush();

  // Begins a part of an optimizer step that the program computes, at these addresses, until
  // EndPart, unless another rank has made it or digests are needed first. Idle leases on its places
  // end first, also where no part begins, so that the next access to a written chunk sees what the
  // other rank has made; the daemon revokes those in use and waits for them. `part.id` is set.
  absl::StatusOr<StartedPart> StartPart(OwnPart* part);
  absl::Status EndPart(uint64_t id, const PartResult& result);
  // Implements memtide_commit. Idle leases on the places end first. ABORTED: a chunk stays in use,
  // or has another version than `commit` says.
  absl::Status Commit(const CommitRequest& commit, absl::Span<const PlaceId> places,
                      absl::Span<const PlaceId> shadows);
  // The last commit of this session, or that of its job when it was opened.
  CommittedStep committed() const;
  absl::StatusOr<std::vector<ChunkVersion>> Versions(absl::Span<const PlaceId> places);
  // Implement memtide_chunk_ids and memtide_attach.
  absl::StatusOr<std::vector<ChunkId>> ChunkIds(PlaceRange range) const;
  absl::StatusOr<PlaceRange> Attach(const std::vector<ChunkId>& chunks);

  // Implement memtide_moment and memtide_end_iteration.
  void BeginMoment(Moment moment);
  void EndIteration();

  // Implements memtide_resize.
  absl::Status Resize(Bytes device_share, Duration deadline);

  // The daemon revokes leases.
  void Revoke(const Revocation& revocation);
  // The daemon limits the leases that the session holds.
  void SetSoftBudget(const LeaseBudget& budget);
  // The daemon takes a region back. RunReclaimer removes and returns it.
  void RegionGone(RegionId region, const DeviceShare& share);
  // Makes every call fail with `reason` from now on. The first reason wins.
  void FailWith(const absl::Status& reason);

  // Releases leases that are revoked or needed for headroom, and returns regions, until
  // StopReclaimer.
  void RunReclaimer();
  void StopReclaimer();

  LeaseStats stats() const;

 private:
  enum class Purpose : uint8_t { kUse, kFault };
  struct Request {
    absl::Span<const PlaceId> places;
    Access access = Access::kRead;
    Purpose purpose = Purpose::kUse;
    absl::optional<Duration> deadline;
  };
  // A plan, and what to send for it: the chunks to lease (those of plan.fetch, then of
  // plan.upgrade), the chunks to release, and the moments to report.
  struct PendingFetch {
    LeasePlan plan;
    std::vector<ChunkId> leased, released;
    std::vector<Moment> moments;
  };

  // Chunks that are to be freed or discarded, and those of them whose leases end first.
  struct PendingEnd {
    LeasePlan plan;
    std::vector<ChunkId> chunks, released;
  };

  // Marks the places as moving, and waits while they are.
  absl::StatusOr<PendingEnd> BeginEnd(absl::Span<const PlaceId> places);
  // Leases and maps the places of the request. Returns kFetch if that took a call, kDone if all
  // leases were held.
  absl::StatusOr<LeasePlan::Next> EnsureLeased(const Request& request);
  // Makes a plan, and waits while places are moving. A plan with kDone needs no CarryOut.
  absl::StatusOr<PendingFetch> Plan(const Request& request, absl::optional<Instant> until);
  absl::Status CarryOut(PendingFetch* pending, absl::optional<Instant> until);
  absl::StatusOr<FetchResult> Fetch(const PendingFetch& pending, absl::optional<Instant> until);
  absl::Status MapGranted(const PendingFetch& pending, const std::vector<Lease>& leases);
  // Unmaps these places. On an error no lease may be released any more: the device is lost, and the
  // session has ended.
  absl::Status Unmap(absl::Span<const PlaceId> places);
  // Ends the session without releasing its leases, so that the daemon marks the chunks of its write
  // leases as torn. Returns the error of all later calls.
  absl::Status LoseDevice(const absl::Status& why);
  // Waits until the minimum residency of these places is over. REQUIRES: they are marked and still
  // mapped.
  void AwaitMinResidency(const std::vector<PlaceId>& places);
  // Unmaps these places and ends their leases, after which they are absent. A lease whose last use
  // is complete on the GPU does not wait for others. REQUIRES: they are marked.
  absl::Status ReleaseLeases(std::vector<PlaceId> places);
  // Ends the leases of places that are unmapped.
  absl::Status EndLeases(const std::vector<PlaceId>& places);
  // Ends leases that the daemon may or may not still count, after a call that failed.
  void ReleaseInDoubt(const std::vector<ChunkId>& chunks);
  void MarkReleased(const std::vector<PlaceId>& places);
  void CountCall();
  void ReturnRegions(const std::vector<RegionId>& regions);

  // Ends the idle leases on these places, and returns their chunks.
  absl::StatusOr<std::vector<ChunkId>> ReleaseIdle(absl::Span<const PlaceId> places);
  // Returns the chunks at these places. NOT_FOUND: a place holds none.
  absl::StatusOr<std::vector<ChunkId>> ResolvePlaces(absl::Span<const PlaceId> places) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Binds chunks to unbound places.
  absl::StatusOr<PlaceRange> Bind(const std::vector<ChunkId>& chunks);
  std::vector<ChunkId> ChunksOf(absl::Span<const PlaceId> places) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for a change of the cache. DEADLINE_EXCEEDED: `until` passed. UNAVAILABLE: `until` is
  // Instant::min(), which stands for no wait at all.
  absl::Status WaitForChange(absl::optional<Instant> until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Changed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyDeviceShare(const DeviceShare& share) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  DaemonSession* const session_;
  AddressSpace* const space_;
  RegionTable* const regions_;
  // A lease for writing may be elsewhere than that for reading.
  std::atomic<bool> leases_move_;

  mutable Mutex mutex_;
  CondVar changed_;
  CondVar reclaim_needed_;
  LeaseCache cache_ ABSL_GUARDED_BY(mutex_);
  AccessLog log_ ABSL_GUARDED_BY(mutex_);
  LeaseStats stats_ ABSL_GUARDED_BY(mutex_);
  std::map<PlaceId, Instant> resident_until_
      ABSL_GUARDED_BY(mutex_);                          // Minimum residency of faulted places.
  std::vector<RegionId> gone_ ABSL_GUARDED_BY(mutex_);  // Regions to return.
  // The memory of parts that have not ended, by their ids.
  std::map<uint64_t, std::vector<std::shared_ptr<Region>>> parts_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_part_ ABSL_GUARDED_BY(mutex_) = 1;
  CommittedStep committed_ ABSL_GUARDED_BY(mutex_);
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_LEASE_LEASE_CLIENT_H_

// LeaseMonitor: what all threads of a session know of its leases: the bookkeeping (LeaseCache), the
// record of uses, the counters, and whether the session is lost.
//
// A plan that it returns marks its places as moving. The caller carries the plan out, and then
// reports the outcome; other threads wait meanwhile. No method makes a call to the daemon, or maps
// memory.
//
// Thread-safe. Methods that wait say so.
#ifndef MEMTIDE_CLIENT_LEASE_LEASE_MONITOR_H_
#define MEMTIDE_CLIENT_LEASE_LEASE_MONITOR_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/lease/access_log.h"
#include "client/lease/lease_cache.h"
#include "client/memory/place.h"
#include "client/rpc/daemon_session.h"

namespace memtide::client {

// The time that uses and page faults have waited.
struct Waits {
  Duration all{0};
  // Parts of it: the daemon's answers, and what they waited for; mapping what was leased; unmapping
  // other chunks first, and what a GPU still did with them.
  Duration calls{0}, maps{0}, unmaps{0};

  void Add(const Waits& other) {
    all += other.all;
    calls += other.calls;
    maps += other.maps;
    unmaps += other.unmaps;
  }
};

// The counters of memtide_stats.
struct LeaseStats {
  uint32_t chunks = 0, leases_held = 0, leases_in_use = 0, lease_budget = 0, slots = 0;
  uint64_t acquires = 0, acquire_hits = 0, faults = 0, upgrades = 0, releases = 0, calls = 0;
  uint64_t blocking_calls = 0;  // By the program's threads.
  Waits waits;
};

// A use or a page fault of places. `until`: nullopt waits as long as the daemon allows,
// Instant::min() not at all.
struct LeaseRequest {
  absl::Span<const PlaceId> places;
  Access access = Access::kRead;
  bool is_fault = false;
  absl::optional<Instant> until;
};

// A plan, and what to send for it: the chunks to lease (those of plan.fetch, then of plan.upgrade),
// the chunks to release, and the moments to report.
struct PendingFetch {
  LeasePlan plan;
  std::vector<ChunkId> leased, released;
  std::vector<Moment> moments;
  int asks = 0;          // Not zero: the call asks which chunks are there by now, for this time.
  bool reports = false;  // Until Ended(), no other call has moments.
};

// Chunks that are to be freed or discarded, and those of them whose leases end first.
struct PendingEnd {
  LeasePlan plan;
  std::vector<ChunkId> chunks, released;
};

// Chunks that are to leave, and the places of those whose leases end first. Only of TakeToEvict():
// the others' places, which are moving, too, until Kept().
struct PendingRelease {
  std::vector<PlaceId> idle, absent;
  std::vector<ChunkId> chunks, released;
};

// Leases to release, and regions to return.
struct Reclaim {
  std::vector<PlaceId> places;
  std::vector<RegionId> regions;
};

// Calls of this thread block no thread of the program: LeaseStats::blocking_calls leaves them out.
void CountNoBlockingCalls();

class LeaseMonitor {
 public:
  // A faulted chunk stays mapped at least as long as its fetch took, up to this time. If threads
  // access more chunks at once than can be leased, they would otherwise evict each other's chunks
  // before any of them could proceed.
  // A chunk on its way to a GPU takes about as long.
  static constexpr Duration kAskAgainAfter = std::chrono::milliseconds(1);
  // It may also wait for hours, for a budget of writes: each time in vain doubles the pause.
  static constexpr int kMostAsks = 7;
  static constexpr Duration kMaxMinResidency = std::chrono::milliseconds(100);

  LeaseMonitor(uint32_t places, const Job& job);

  // --- Leases ---

  // Makes a plan, and waits while places are moving. A plan with kDone needs nothing else.
  // DEADLINE_EXCEEDED: request.until passed. UNAVAILABLE: no wait was allowed.
  absl::StatusOr<PendingFetch> Plan(const LeaseRequest& request);
  // The plan was carried out, in a call that began then. `resume` is called last, under the lock,
  // so that no thread unmaps a place before those that its fault has blocked go on.
  void Granted(const LeasePlan& plan, const FetchResult& fetched, Instant began, const Waits& waits,
               absl::FunctionRef<void()> resume);
  void Refused(const LeasePlan& plan, const Waits& waits);
  // These places are unmapped, and their leases have ended.
  void Released(absl::Span<const PlaceId> places);
  absl::Status EndUse(absl::Span<const PlaceId> places);

  // The chunks at the places, and those of the places with idle leases, which are moving from now
  // on. nullopt: all idle leases, and no chunks. NOT_FOUND: a place holds no chunk.
  absl::StatusOr<PendingRelease> TakeIdle(absl::optional<absl::Span<const PlaceId>> places);
  // The same, where only chunks with an idle lease or none are returned.
  absl::StatusOr<PendingRelease> TakeToEvict(absl::Span<const PlaceId> places);
  // Waits until the minimum residency of these places is over. REQUIRES: they are marked and still
  // mapped.
  void AwaitMinResidency(const std::vector<PlaceId>& places);

  // --- Chunks ---

  // RESOURCE_EXHAUSTED: there are no places for that number of chunks.
  absl::Status CheckRoom(uint32_t count) const;
  // INVALID_ARGUMENT: a chunk has a place already, or is named twice.
  absl::Status CheckUnbound(const std::vector<ChunkId>& chunks) const;
  // Binds chunks to unbound places.
  absl::StatusOr<PlaceRange> Bind(const std::vector<ChunkId>& chunks);
  // Bind() in vain: the places are unbound again.
  void Unbind(PlaceRange range);
  // NOT_FOUND: a place holds none.
  absl::StatusOr<std::vector<ChunkId>> ChunksAt(absl::Span<const PlaceId> places) const;
  // Marks the places as moving, and waits while they are.
  absl::StatusOr<PendingEnd> BeginEnd(absl::Span<const PlaceId> places);
  // The chunks were freed, or are still there, without leases.
  void Freed(absl::Span<const PlaceId> places);
  void Kept(absl::Span<const PlaceId> places, size_t released);

  // --- Moments ---

  void BeginMoment(Moment moment);
  void EndIteration();
  std::vector<Moment> TakeMoments();
  // The call of `pending` has ended, with these chunks ahead; null: it failed. Until then no other
  // call takes moments, as one might overtake the other.
  void Ended(const PendingFetch& pending, const ChunksAhead* ahead);

  // --- Ahead of uses ---

  // Waits for chunks that can be leased ahead of their uses, or for moments that are worth a
  // report. nullopt: Stop() was called.
  absl::optional<PendingFetch> NextAhead();

  // --- News from the daemon ---

  // It revokes leases.
  void Revoke(const Revocation& revocation);
  // It limits the leases that the session holds.
  void SetSoftBudget(const LeaseBudget& budget);
  // The share has changed. The daemon takes the region `gone` back, which NextReclaim() returns.
  void SetShare(const DeviceShare& share, absl::optional<RegionId> gone = absl::nullopt);
  // Makes every call fail with `reason` from now on. The first reason wins.
  void FailWith(const absl::Status& reason);
  absl::Status lost() const;

  // --- Reclaim ---

  // Waits for something to reclaim. nullopt: Stop() was called.
  absl::optional<Reclaim> NextReclaim();
  void Stop();
  // Waits for a change, this long at most.
  void AwaitChange(Duration most);

  void CountCall();
  LeaseStats stats() const;

 private:
  absl::Status WaitForChange(absl::optional<Instant> until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for the lease that is being taken ahead, and lets no other follow before an answer names
  // some: what the caller is about to end would come again. The session's error: it is lost.
  absl::Status EndLeasesAhead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Changed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeMomentsFor(PendingFetch* pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  CondVar reclaim_needed_, ahead_needed_;
  LeaseCache cache_ ABSL_GUARDED_BY(mutex_);
  AccessLog log_ ABSL_GUARDED_BY(mutex_);
  LeaseStats stats_ ABSL_GUARDED_BY(mutex_);
  std::map<PlaceId, Instant> resident_until_
      ABSL_GUARDED_BY(mutex_);                          // Minimum residency of faulted places.
  std::vector<RegionId> gone_ ABSL_GUARDED_BY(mutex_);  // Regions to return.
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool reporting_ ABSL_GUARDED_BY(mutex_) = false;  // A call with moments is under way.
  // See ChunksAhead. Zero: none; n: asked for after kAskAgainAfter, n - 1 times doubled.
  int more_come_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_LEASE_LEASE_MONITOR_H_

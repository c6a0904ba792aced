// LeaseClient: leases chunks, maps them at their places, and gives leases back.
//
// It joins what is known of the leases (LeaseMonitor), the addresses (AddressSpace) and the daemon
// (DaemonSession): it carries the monitor's plans out, and reports the outcome to it.
//
// Invariants, which keep other tenants of a slot away from this process's bytes and vice versa:
//   a place is unmapped before any call names its lease as released;
//   a place is mapped only after its lease is granted;
//   a place that a lost device failed to write is never released: the session ends with its lease.
//
// Thread safety: all methods may be called from any thread; RunReclaimer and RunAhead need
// a thread of their own each.
#ifndef MEMTIDE_CLIENT_LEASE_LEASE_CLIENT_H_
#define MEMTIDE_CLIENT_LEASE_LEASE_CLIENT_H_

#include <atomic>
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
#include "client/lease/lease_monitor.h"
#include "client/lease/region_table.h"
#include "client/memory/address_space.h"
#include "client/memory/place.h"
#include "client/rpc/daemon_session.h"

namespace memtide::client {

class LeaseClient {
 public:
  // The leases that a session may hold: at most `lease_budget`, and fewer than `slots`, because
  // without a free slot no chunk could ever move.
  static uint32_t Budget(uint32_t lease_budget, uint32_t slots);

  // A page fault that waits longer than this for its chunk ends the process. Reading a chunk from a
  // busy disk takes less than a second.
  static constexpr Duration kFaultTimeout = std::chrono::seconds(60);

  // Commit and Duplicate retry this long while a chunk is in use. A use that lasts longer would not
  // end soon.
  static constexpr Duration kRetryTimeout = std::chrono::seconds(10);
  static constexpr Duration kRetryInterval = std::chrono::milliseconds(5);

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

  // Implement memtide_moment, memtide_end_iteration and memtide_protect.
  void BeginMoment(Moment moment);
  void EndIteration();
  void Protect() { space_->Protect(); }

  // Implements memtide_resize.
  absl::Status Resize(Bytes device_share, Duration deadline);

  // Releases leases that are revoked or needed for headroom, and returns regions, until the monitor
  // is stopped.
  void RunReclaimer();
  // Leases chunks that are there before the program uses them, and reports moments, until the
  // monitor is stopped. Needs a thread of its own, too.
  void RunAhead();

  // Events of the session go to it.
  LeaseMonitor& monitor() { return monitor_; }
  const AddressSpace& space() const { return *space_; }

 private:
  // Leases and maps the places of the request.
  absl::Status EnsureLeased(const LeaseRequest& request);
  absl::Status CarryOut(PendingFetch* pending, absl::optional<Instant> until);
  absl::StatusOr<FetchResult> Fetch(const PendingFetch& pending, absl::optional<Instant> until);
  absl::Status MapGranted(const PendingFetch& pending, const std::vector<Lease>& leases);
  // Unmaps these places. On an error no lease may be released any more: the device is lost, and the
  // session has ended.
  absl::Status Unmap(absl::Span<const PlaceId> places);
  // Ends the session without releasing its leases, so that the daemon marks the chunks of its write
  // leases as torn. Returns the error of all later calls.
  absl::Status LoseDevice(const absl::Status& why);
  // Unmaps these places and ends their leases, after which they are absent. A lease whose last use
  // is complete on the GPU does not wait for others. REQUIRES: they are marked.
  absl::Status ReleaseLeases(std::vector<PlaceId> places);
  // Ends the leases of places that are unmapped.
  absl::Status EndLeases(const std::vector<PlaceId>& places);
  // Unmaps places, and makes a call that ends the leases on them, whose chunks are `leased`.
  absl::Status EndBy(absl::FunctionRef<absl::Status()> call, absl::Span<const PlaceId> mapped,
                     const std::vector<ChunkId>& leased);
  // Ends leases that the daemon may or may not still count, after a call that failed.
  void ReleaseInDoubt(const std::vector<ChunkId>& chunks);
  void ReturnRegions(const std::vector<RegionId>& regions);
  // Ends the idle leases on these places, and returns their chunks.
  absl::StatusOr<std::vector<ChunkId>> ReleaseIdle(absl::Span<const PlaceId> places);
  // Binds chunks to unbound places.
  absl::StatusOr<PlaceRange> Bind(const std::vector<ChunkId>& chunks);

  DaemonSession* const session_;
  AddressSpace* const space_;
  RegionTable* const regions_;
  LeaseMonitor monitor_;
  // A lease for writing may be elsewhere than that for reading.
  std::atomic<bool> leases_move_;

  mutable Mutex mutex_;
  // The memory of parts that have not ended, by their ids.
  std::map<uint64_t, std::vector<std::shared_ptr<Region>>> parts_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_part_ ABSL_GUARDED_BY(mutex_) = 1;
  CommittedStep committed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_LEASE_LEASE_CLIENT_H_

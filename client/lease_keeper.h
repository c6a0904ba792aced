// LeaseKeeper: leases chunks, maps them at their places, and gives them back.
//
// Joins the bookkeeping (LeaseCache), the addresses (AddressSpace) and the daemon (Lender): it asks
// the cache for a plan under its lock, carries it out without, and reports back. The order that
// keeps bytes safe: a place is unmapped before its lease is named in any call that gives it back,
// and mapped only after its lease is granted. Thread-safe; KeepRoom is for one thread of its own.
#ifndef MEMTIDE_CLIENT_LEASE_KEEPER_H_
#define MEMTIDE_CLIENT_LEASE_KEEPER_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/address_space.h"
#include "client/lease_cache.h"
#include "client/lender.h"
#include "client/regions.h"
#include "client/types.h"
#include "client/use_log.h"

namespace memtide::client {

// As memtide_stats.
struct LeaseStats {
  uint32_t chunks = 0, leases_held = 0, leases_in_use = 0, lease_budget = 0;
  uint64_t acquires = 0, acquire_hits = 0, faults = 0, upgrades = 0, releases = 0, calls = 0;
  Duration waited{0};
};

class LeaseKeeper {
 public:
  // Leases that a session may hold of `slots`: one at least stays free, or nothing could ever move.
  static uint32_t Budget(uint32_t lease_budget, uint32_t slots);

  // How long a touch may wait for its chunk before the process ends: reading one from a busy disk
  // takes less than a second.
  static constexpr Duration kTouchPatience = std::chrono::seconds(60);

  // What was touched stays mapped at least as long as it took to come, up to this: where threads
  // touch more chunks at once than can be leased, they would otherwise take them from each other
  // before any of them got on.
  static constexpr Duration kLongestStay = std::chrono::milliseconds(100);

  // All three must outlive the keeper.
  LeaseKeeper(const LeaseCache::Options& options, Lender* lender, AddressSpace* space,
              RegionTable* regions);

  absl::StatusOr<PlaceRange> Allocate(uint32_t count, ChunkKind kind, Unwritten unwritten);
  absl::Status Free(PlaceRange range);

  // As memtide_acquire. No deadline: as long as the daemon allows. Zero: only what needs no wait.
  absl::Status Acquire(absl::Span<const PlaceId> places, Access access,
                       absl::optional<Duration> deadline);
  absl::Status EndUse(absl::Span<const PlaceId> places);
  // Answers a touch: leases, maps, wakes. OK also when the place holds no chunk any more: then the
  // touch, tried again, is the program's own fault.
  absl::Status AnswerTouch(PlaceId place, Access access);

  absl::Status Prefetch(absl::Span<const PlaceId> places);
  absl::Status Evict(absl::Span<const PlaceId> places);
  absl::Status Flush();

  // A part of an optimizer's step. Idle leases on its places end first; the daemon waits for, and
  // asks for, those in use.
  absl::StatusOr<uint64_t> Step(const StepPart& part);
  // As memtide_publish: idle leases on the places end first. ABORTED: one stays in use.
  absl::Status Publish(const Publication& publication, absl::Span<const PlaceId> places,
                       absl::Span<const PlaceId> fresh);
  absl::StatusOr<std::vector<ChunkVersion>> Versions(absl::Span<const PlaceId> places);
  // As memtide_chunk_ids and memtide_attach.
  absl::StatusOr<std::vector<ChunkId>> ChunkIds(PlaceRange range) const;
  absl::StatusOr<PlaceRange> Attach(const std::vector<ChunkId>& chunks);

  // As memtide_moment and memtide_end_iteration.
  void BeginMoment(Moment moment);
  void EndIteration();

  // As Lender::Resize.
  absl::Status Resize(Bytes device_share, Duration deadline);

  // The daemon asked for leases back.
  void Revoke(const Revocation& wanted);
  // The daemon would have the session hold that many leases at most; what is in use may exceed it.
  void ChangeBudget(uint32_t lease_budget, uint32_t most_in_use);
  // A region is to be let go of, and returned by KeepRoom.
  void RegionGone(RegionId region, const Resized& left);
  // Every call fails with `reason` from now on. The first reason stays.
  void Lose(const absl::Status& reason);

  // Gives back what must go and what makes room ahead, leases and regions, until StopKeepingRoom.
  void KeepRoom();
  void StopKeepingRoom();

  LeaseStats stats() const;

 private:
  enum class Purpose : uint8_t { kUse, kTouch };
  struct Request {
    absl::Span<const PlaceId> places;
    Access access = Access::kRead;
    Purpose purpose = Purpose::kUse;
    absl::optional<Duration> deadline;
  };
  // A plan, and the chunks that it names: `leased` are those of fetch, then of upgrade.
  struct Errand {
    LeasePlan plan;
    std::vector<ChunkId> leased, released;
    std::vector<Moment> moments;
  };

  // Whether a lease had to be fetched (kFetch), or was held (kDone).
  absl::StatusOr<LeasePlan::Next> Obtain(const Request& request);
  // Waits until nothing is in the way. Done: nothing to carry out.
  absl::StatusOr<Errand> Plan(const Request& request, absl::optional<Instant> until);
  absl::Status CarryOut(Errand* errand, absl::optional<Instant> until);
  absl::StatusOr<Fetched> Fetch(const Errand& errand, absl::optional<Instant> until);
  absl::Status MapGranted(const Errand& errand, const std::vector<Lease>& leases);
  // Waits until these marked places, which are mapped still, have stayed as long as they may.
  void LetStay(const std::vector<PlaceId>& places);
  // The leases of these marked places, which are unmapped here, end. Then they are absent.
  absl::Status GiveBack(const std::vector<PlaceId>& places);
  // Ends leases that the daemon may or may not still count, after a call that failed half-way.
  void ReleaseInDoubt(const std::vector<ChunkId>& chunks);
  void MarkReleased(const std::vector<PlaceId>& places);
  void CountCall();
  void ReturnRegions(const std::vector<RegionId>& regions);

  // The chunks at these places, whose idle leases have ended.
  absl::StatusOr<std::vector<ChunkId>> TakeFromHere(absl::Span<const PlaceId> places);
  // NOT_FOUND: one holds none.
  absl::StatusOr<std::vector<ChunkId>> BoundTo(absl::Span<const PlaceId> places) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Binds chunks to places that are free.
  absl::StatusOr<PlaceRange> Bind(const std::vector<ChunkId>& chunks);
  std::vector<ChunkId> ChunksOf(absl::Span<const PlaceId> places) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for a change. DEADLINE_EXCEEDED, or UNAVAILABLE when `until` is already past.
  absl::Status WaitForChange(absl::optional<Instant> until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Changed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeBudget(const Resized& left) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Lender* const lender_;
  AddressSpace* const space_;
  RegionTable* const regions_;

  mutable Mutex mutex_;
  CondVar changed_;
  CondVar room_wanted_;
  LeaseCache cache_ ABSL_GUARDED_BY(mutex_);
  UseLog log_ ABSL_GUARDED_BY(mutex_);
  LeaseStats stats_ ABSL_GUARDED_BY(mutex_);
  std::map<PlaceId, Instant> stays_until_ ABSL_GUARDED_BY(mutex_);  // Touched places.
  std::vector<RegionId> gone_ ABSL_GUARDED_BY(mutex_);              // To be returned.
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_LEASE_KEEPER_H_

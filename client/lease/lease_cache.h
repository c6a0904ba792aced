// LeaseCache: which places hold which chunks, which chunks are leased, and which leases to release
// when another one is needed. Pure bookkeeping: no system calls, no clock, no threads.
//
// A caller asks for a plan under the lock that guards this object, carries the plan out without the
// lock, and reports the outcome. The places of a plan are marked as moving until then, so no two
// plans name the same place; a request that needs a moving place returns kWait and is repeated. A
// plan is made as a whole and nothing is held while waiting, so callers with overlapping sets
// cannot deadlock.
//
//   unbound -> absent <-> leasing / releasing <-> reading, writing;  reading -> upgrading ->
//   writing
//
// A held lease is in use (acquired) or idle. Idle leases are kept as long as no more than `budget`
// are held. Beyond that they are released in this order: first those that the daemon's eviction
// hints name, then the longest idle, and last the kRecentFaults most recently faulted ones, so that
// code which accesses several chunks in turn makes progress.
//
// Invariants: CheckInvariants(). Thread-compatible.
#ifndef MEMTIDE_CLIENT_LEASE_LEASE_CACHE_H_
#define MEMTIDE_CLIENT_LEASE_LEASE_CACHE_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "client/lease/idle_list.h"
#include "client/lease/lease_limits.h"
#include "client/memory/place.h"
#include "client/rpc/daemon_session.h"

namespace memtide::client {

struct LeasePlan {
  enum class Next : uint8_t {
    kDone,   // All leases are held, and their uses counted. There is nothing to report.
    kWait,   // A place is moving, nothing was marked: wait for a change, then repeat.
    kFetch,  // Carry the plan out, then report Released, and Granted or Refused.
  };
  Next next = Next::kDone;
  Access access = Access::kRead;
  std::vector<PlaceId> fetch;    // Lease and map these.
  std::vector<PlaceId> upgrade;  // Held for reading: lease these for writing.
  std::vector<PlaceId> release;  // Unmap these, then end their leases.
  // Set if the requested leases and those in use exceed the budget together. The fetch may then
  // wait for other users, so `release` must be released in a call of its own and not wait with it.
  bool release_first = false;

  // For Granted and Refused: the held places whose use is reserved, and whether uses are counted.
  std::vector<PlaceId> hits;
  bool counts_uses = true;
  bool is_ahead = false;  // PlanAhead() made it.
};

// The state of a place: see LeaseCache.
enum class PlaceState : uint8_t {
  kUnbound,
  kAbsent,
  kLeasing,
  kReading,
  kUpgrading,
  kWriting,
  kReleasing
};

inline bool IsMoving(PlaceState state) {
  return state == PlaceState::kLeasing || state == PlaceState::kUpgrading ||
         state == PlaceState::kReleasing;
}
inline bool IsHeld(PlaceState state) {
  return state == PlaceState::kReading || state == PlaceState::kUpgrading ||
         state == PlaceState::kWriting;
}

class LeaseCache {
 public:
  struct Options {
    uint32_t places = 0;  // Not zero.
    uint32_t budget = 1;  // Leases held at most, unless all are in use. Not zero.
  };
  struct Counts {
    uint32_t bound = 0, held = 0, in_use = 0, idle = 0, moving = 0, budget = 0;
    uint64_t plans_ahead = 0, ended_ahead = 0;  // By PlanAhead(); granted or refused, in order.
  };

  // REQUIRES: options.places and options.budget are not zero.
  explicit LeaseCache(const Options& options);

  // --- Chunks and places ---

  // Returns the lowest run of `count` unbound places. RESOURCE_EXHAUSTED: there is none.
  absl::StatusOr<PlaceRange> FindUnbound(uint32_t count) const;
  // Binds `chunks` to the places from `first` on. REQUIRES: these places are unbound.
  void Bind(PlaceId first, absl::Span<const ChunkId> chunks);
  // Begins to free these chunks, or to discard their content: returns kFetch, with the mapped
  // places in `release` and every place marked as moving, or kWait. FAILED_PRECONDITION: a chunk is
  // in use. NOT_FOUND: a place is unbound. INVALID_ARGUMENT: a place is named twice.
  absl::StatusOr<LeasePlan> BeginEnd(absl::Span<const PlaceId> places);
  // Reports that the chunks were freed (the places become unbound), or that they are still there
  // (the places become absent). REQUIRES: BeginEnd marked them.
  void Freed(absl::Span<const PlaceId> places);
  void Kept(absl::Span<const PlaceId> places);

  bool IsBound(PlaceId place) const;
  // Whether any place holds the chunk.
  bool IsBound(ChunkId chunk) const { return places_.count(chunk) > 0; }
  bool IsAbsent(PlaceId place) const;
  // REQUIRES: the place is bound.
  ChunkId chunk(PlaceId place) const;

  // --- Leases ---

  // Counts one use of each of `places`, or returns what must be done first. INVALID_ARGUMENT: a
  // place is named twice. NOT_FOUND: a place is unbound. RESOURCE_EXHAUSTED: more places than the
  // budget.
  absl::StatusOr<LeasePlan> Acquire(absl::Span<const PlaceId> places, Access access);
  // The same for a place that was faulted in. No use is counted: the lease is idle, but recent.
  absl::StatusOr<LeasePlan> Fault(PlaceId place, Access access);
  // Reports that the leases of the plan are held and mapped, or that none of them is.
  void Granted(const LeasePlan& plan);
  void Refused(const LeasePlan& plan);
  // Reports that these places are unmapped and their leases ended. REQUIRES: LeasePlan::release or
  // a Take function named them.
  void Released(absl::Span<const PlaceId> places);

  // Chunks that the daemon has ready for their next uses, in that order; replaces those before.
  // Chunks without a place are ignored.
  void SetAhead(const ChunksAhead& ahead);
  // Plans leases of them: of those that are absent, or leased for reading and to be written, as
  // many as fit without a release and share an access. No use is counted. kDone: there are none.
  LeasePlan PlanAhead();
  bool HasAhead() const;

  // Ends one use of each place, or of none. FAILED_PRECONDITION: a place is not in use.
  absl::Status EndUse(absl::Span<const PlaceId> places);

  // --- Reclaim; each Take function marks the places that it returns as moving ---

  // Replaces the eviction hints: leased chunks to release before all others, in this order. Chunks
  // without a place are ignored. TakeRevoked() takes the first `leaving` as they become idle, from
  // the moment after their last use on.
  void SetEvictionHints(absl::Span<const ChunkId> chunks, size_t leaving);
  // Begins the next moment. Eviction hints do not apply to chunks used in the current moment,
  // because the program may still be using them without a lease in use.
  void BeginMoment() { ++moment_; }
  // Takes idle leases so that the next fetches need not release any first. None unless the budget
  // is used up and the chunks do not all fit into it.
  std::vector<PlaceId> TakeForHeadroom();
  // Records that the daemon wants the leases of these chunks back, and `additional` more.
  // TakeRevoked takes them as they become idle. Chunks that are not leased are ignored.
  void Revoke(absl::Span<const ChunkId> chunks, uint32_t additional);
  std::vector<PlaceId> TakeRevoked();
  // Takes the idle leases among `places`, or all. Places that are unbound, absent, moving or in use
  // are skipped.
  std::vector<PlaceId> TakeIdle(absl::optional<absl::Span<const PlaceId>> places);
  // Whether TakeRevoked or TakeForHeadroom would return any place.
  bool NeedsReclaim() const;

  Counts counts() const;
  LeaseLimits& limits() { return limits_; }
  // CHECK-fails unless lists, states and counts agree. For tests; takes time linear in places.
  void CheckInvariants() const;

 private:
  using State = PlaceState;
  static constexpr uint32_t kNone = IdleList::kNone;
  static constexpr uint32_t kRecentFaults = 2;
  struct Entry {
    ChunkId chunk;
    State state = State::kUnbound;
    uint32_t uses = 0;
    uint32_t reserved = 0;  // Part of `uses`: those of plans that are not yet granted.
    bool is_ahead = false;  // Its use is that of an upgrade by PlanAhead(), and ends with it.
    uint64_t stamp = 0;     // The value of stamp_ of the last request that named the place.
    uint64_t moment = 0;    // The value of moment_ at its last use.

    bool IsIdle() const { return IsHeld(state) && uses == 0; }
    // A program may still touch a chunk of its present moment without a use that the client knows.
    bool IsSettled(uint64_t present) const { return moment != present; }
  };

  bool IsRecent(uint32_t place) const;

  Entry& at(PlaceId place) { return entries_[place.value()]; }

  // The place is bound, and the request `stamp_` names it for the first time.
  absl::Status CheckNamed(PlaceId place);
  absl::Status CheckWanted(absl::Span<const PlaceId> places);
  LeasePlan MakePlan(absl::Span<const PlaceId> places, Access access);
  bool IsWantedAhead(PlaceId place, Access access) const;
  void EndAhead(const LeasePlan& plan);
  void AddUse(PlaceId place);
  // Adds a use that only its plan may end; ConfirmUse makes it an ordinary one.
  void ReserveUse(PlaceId place);
  void ConfirmUse(PlaceId place);
  void DropUse(PlaceId place);
  // Marks up to `count` idle leases, hinted ones first, then the longest idle, but none that the
  // request `stamp_` names. Recently faulted places come last, or not at all with Recent::kSpare.
  enum class Recent : uint8_t { kSpare, kLast };
  std::vector<PlaceId> TakeOldest(uint32_t count, Recent recent);
  void MarkReleasing(uint32_t place, std::vector<PlaceId>* taken);
  bool IsTakable(uint32_t place) const;
  uint32_t in_use() const { return held_ - idle_.size(); }

  LeaseLimits limits_;
  std::vector<Entry> entries_;
  IdleList idle_;
  uint32_t recent_[kRecentFaults] = {kNone, kNone};
  uint64_t stamp_ = 0;
  uint32_t revoked_ = 0;                            // Revoked and not yet taken, any chunks.
  std::set<uint32_t> revoked_places_;               // Revoked and not yet taken, these places.
  std::vector<uint32_t> eviction_hints_, leaving_;  // Places.
  std::vector<PlaceId> ahead_reads_, ahead_writes_;
  uint64_t moment_ = 0;
  std::map<ChunkId, uint32_t> places_;  // Chunk to bound place.
  uint32_t bound_ = 0, held_ = 0, moving_ = 0;
  uint64_t plans_ahead_ = 0, ended_ahead_ = 0;  // Plans, since the beginning.
  uint32_t upgraded_ahead_ = 0;                 // Idle leases that PlanAhead() is upgrading.
  uint32_t leasing_ = 0;  // Moving entries that will be held once their fetch completes.
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_LEASE_LEASE_CACHE_H_

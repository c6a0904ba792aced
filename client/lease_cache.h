// LeaseCache: which places hold which chunks, which of them are leased, and what to give back when
// another is wanted. Pure bookkeeping: no system calls, no clock, no threads.
//
// A caller asks for a plan, carries it out without holding the lock that guards this object, and
// reports back. What a plan names is marked as moving until then, so that no second plan touches
// it: whoever needs a moving place is told to wait and to ask again. A plan is made whole at once,
// with nothing held while waiting, so two callers wanting overlapping sets never wait for each
// other.
//
//   unbound -> absent <-> leasing / releasing <-> reading, writing;  reading -> upgrading ->
//   writing
//
// Held leases are in use (somebody acquired them) or idle. While idle ones exist, at most `budget`
// are held, or fewer where the daemon would have it so: those go first that the daemon expects to
// be used last, then the oldest idle ones; the two most recently touched last, so that code
// touching several chunks at once makes progress. Thread-compatible.
#ifndef MEMTIDE_CLIENT_LEASE_CACHE_H_
#define MEMTIDE_CLIENT_LEASE_CACHE_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "client/types.h"

namespace memtide::client {

struct LeasePlan {
  enum class Next : uint8_t {
    kDone,   // Held already, and counted as used; nothing to do, nothing to report.
    kWait,   // A place is moving: wait for a change and ask again. Nothing was marked.
    kFetch,  // Carry out, then report: Released, and Granted or Refused.
  };
  Next next = Next::kDone;
  Access access = Access::kRead;
  std::vector<PlaceId> fetch;    // To be leased and mapped.
  std::vector<PlaceId> upgrade;  // Held for reading, to be leased for writing.
  std::vector<PlaceId> release;  // To be unmapped and then given back: see release_first.
  // The wanted leases exceed the budget together with those in use, so the fetch can wait for
  // other users: give `release` back in a call of its own, for these must not wait with it.
  bool release_first = false;

  // Of the cache: hits that got their use already, and whether Granted counts uses at all.
  std::vector<PlaceId> hits;
  bool counts_uses = true;
};

class LeaseCache {
 public:
  struct Options {
    uint32_t places = 0;  // Not zero.
    uint32_t budget = 1;  // Most leases held while idle ones exist. Not zero.
  };
  struct Counts {
    uint32_t bound = 0, held = 0, in_use = 0, idle = 0, moving = 0;
  };

  // REQUIRES: places and budget are not zero.
  explicit LeaseCache(const Options& options);

  // --- Chunks and places ---

  // The lowest run of `count` unbound places, for Bind. RESOURCE_EXHAUSTED when there is none.
  absl::StatusOr<PlaceRange> FindUnbound(uint32_t count) const;
  // REQUIRES: the places are unbound and as many as the chunks.
  void Bind(PlaceId first, absl::Span<const ChunkId> chunks);
  // Begins the end of these chunks: kFetch with `release` set to those that are mapped, every place
  // marked as moving; or kWait. FAILED_PRECONDITION when one is in use.
  absl::StatusOr<LeasePlan> BeginFree(PlaceRange range);
  // The chunks are gone: places are unbound. Or they are not: places are absent. REQUIRES: marked.
  void Freed(PlaceRange range);
  void NotFreed(PlaceRange range);

  bool IsBound(PlaceId place) const;
  // Whether the chunk is bound to some place.
  bool IsBound(ChunkId chunk) const { return places_.count(chunk) > 0; }
  bool IsAbsent(PlaceId place) const;
  // REQUIRES: the place is bound.
  ChunkId chunk(PlaceId place) const;

  // --- Leases ---

  // Counts one use on each of `places`, or says what must be done first. INVALID_ARGUMENT:
  // a place twice. NOT_FOUND: a place not bound. RESOURCE_EXHAUSTED: more than the budget.
  absl::StatusOr<LeasePlan> Acquire(absl::Span<const PlaceId> places, Access access);
  // The same for a place that was touched: no use is counted, the lease is idle but recent.
  absl::StatusOr<LeasePlan> Touch(PlaceId place, Access access);
  // The leases of the plan are held and mapped, or none of them is.
  void Granted(const LeasePlan& plan);
  void Refused(const LeasePlan& plan);
  // These are unmapped and given back. REQUIRES: a plan or a Take named them in `release`.
  void Released(absl::Span<const PlaceId> places);

  // Takes one use off each, all or none. FAILED_PRECONDITION when one is not in use.
  absl::Status EndUse(absl::Span<const PlaceId> places);

  // --- Giving back; each marks what it returns as moving ---

  // Of what is leased, these are expected to be used last, the last first: they go before others.
  // Chunks that are not leased: ignored.
  void SetFarthest(absl::Span<const ChunkId> chunks);
  // What is used from now on is used in another moment. What is used in the current one may be in
  // use for longer than anybody tells: it goes oldest first, whatever is expected of it.
  void BeginMoment() { ++moment_; }
  // What should go so that the next leases find room: some, when nearly `budget` are held and the
  // chunks do not all fit; else none.
  std::vector<PlaceId> TakeRoomAhead();
  // The daemon wants these chunks' leases back, and `others`. Those that are idle now are taken by
  // TakeRevoked, the rest as uses end. Chunks that are not leased: ignored.
  void Revoke(absl::Span<const ChunkId> chunks, uint32_t others);
  std::vector<PlaceId> TakeRevoked();
  std::vector<PlaceId> TakeAllIdle();
  // The idle ones of `places` are marked and returned. Unbound, absent and busy ones are skipped.
  std::vector<PlaceId> TakeIdle(absl::Span<const PlaceId> places);
  // Whether TakeRevoked or TakeRoomAhead would return something.
  bool WantsRoom() const;

  Counts counts() const;
  uint32_t budget() const { return budget_; }
  // Leases above it go as uses end. REQUIRES: not zero.
  void SetBudget(uint32_t budget);
  // The same, but as many as before may be in use at once, or if `most_in_use` is not zero so many:
  // an Acquire for more is RESOURCE_EXHAUSTED, beside whatever is in use. REQUIRES: budget not
  // zero.
  void Economise(uint32_t budget, uint32_t most_in_use);
  // CHECK-fails unless lists, states and counts agree. For tests; linear in places.
  void CheckInvariants() const;

 private:
  enum class State : uint8_t {
    kUnbound,
    kAbsent,
    kLeasing,
    kReading,
    kUpgrading,
    kWriting,
    kReleasing
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kNoLimit = ~uint32_t{0};
  static constexpr uint32_t kRecentTouches = 2, kTouchRoom = 4;
  struct Entry {
    ChunkId chunk;
    State state = State::kUnbound;
    uint32_t uses = 0;
    uint32_t promised = 0;  // Of the uses: counted for plans that are still being carried out.
    uint32_t older = kNone, newer = kNone;  // Neighbours in the list of idle leases.
    uint64_t stamp = 0;                     // The request that named it last.
    uint64_t moment = 0;                    // In which it was used last.
  };

  static bool IsMoving(State state);
  static bool IsHeld(State state);
  bool IsIdle(const Entry& entry) const { return IsHeld(entry.state) && entry.uses == 0; }
  bool IsRecent(uint32_t place) const;

  Entry& at(PlaceId place) { return entries_[place.value()]; }
  const Entry& at(PlaceId place) const { return entries_[place.value()]; }
  void PushNewest(uint32_t place);
  void Unlink(uint32_t place);

  absl::Status CheckWanted(absl::Span<const PlaceId> places);
  LeasePlan MakePlan(absl::Span<const PlaceId> places, Access access);
  void AddUse(PlaceId place);
  // A use that only its plan may take off again, until it is granted.
  void PromiseUse(PlaceId place);
  void KeepPromise(PlaceId place);
  void DropUse(PlaceId place);
  // Marks up to `count` idle leases, oldest first, not those of the request `stamp_`.
  enum class Recent : uint8_t { kSpare, kLast };
  std::vector<PlaceId> TakeOldest(uint32_t count, Recent recent);
  void Mark(uint32_t place, std::vector<PlaceId>* taken);
  bool IsTakable(uint32_t place) const;
  uint32_t room_ahead() const;
  // Leases above which some go. A budget that was economised leaves room for touches beside what is
  // in use: who walks over several chunks at once would else lose one for the other, for ever.
  uint32_t most_held() const;

  uint32_t budget_;
  uint32_t most_in_use_;               // At once, by one request.
  uint32_t most_together_ = kNoLimit;  // At once, by all.
  std::vector<Entry> entries_;
  uint32_t oldest_ = kNone, newest_ = kNone;
  uint32_t recent_[kRecentTouches] = {kNone, kNone};
  uint64_t stamp_ = 0;
  uint32_t revoked_ = 0;               // Asked for and not yet taken, whichever.
  std::set<uint32_t> revoked_places_;  // The same, these.
  std::vector<uint32_t> farthest_;
  uint64_t moment_ = 0;
  std::map<ChunkId, uint32_t> places_;  // Of bound places: where a chunk is.
  uint32_t bound_ = 0, held_ = 0, idle_ = 0, moving_ = 0;
  uint32_t leasing_ = 0;  // Of the moving: will be held.
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_LEASE_CACHE_H_

// AdmissionQueue: the fetches and steps of a job that are not admitted yet. Engine-internal.
//
// Such a call is found again by each chunk that it names; by the one chunk that it watches; and, in
// the order of age, among the calls at its tier that wait for the same reason. It watches a chunk
// whose lease excludes it or, while it lacks room, a chunk that is not pinned. NoteChange() is
// called when the pins of a chunk change, and TakeChanged() returns the chunk if it was watched.
//
// Ownership: the calls are the engine's. Each has a QueuePlace, which takes the call out of the
// AdmissionQueue when it goes. AdmissionQueue must outlive them and does not move.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_ADMISSION_QUEUE_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_ADMISSION_QUEUE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "base/kinds.h"
#include "daemon/engine/interface/types.h"
#include "daemon/pool/tier.h"

namespace memtide {

struct Waiter;
class AdmissionQueue;

enum class WaitsFor : uint8_t { kRoom, kLease };

// Where a call stands in the AdmissionQueue of its job. A member of the call.
class QueuePlace {
 public:
  QueuePlace() = default;
  QueuePlace(const QueuePlace&) = delete;
  QueuePlace& operator=(const QueuePlace&) = delete;
  ~QueuePlace() { Leave(); }

  // The call waits no longer. Does nothing if it does not wait.
  void Leave();
  // Zero: the call does not wait. A call that came later has a larger age.
  uint64_t age() const { return age_; }
  // The number of the watched chunk in Waiter::chunks. REQUIRES: the call waits.
  uint32_t watched() const { return watched_; }
  WaitsFor reason() const { return reason_; }

 private:
  friend class AdmissionQueue;
  AdmissionQueue* calls_ = nullptr;
  Waiter* waiter_ = nullptr;
  uint64_t age_ = 0;
  uint32_t watched_ = 0;
  WaitsFor reason_ = WaitsFor::kRoom;
};

class AdmissionQueue {
 public:
  // A call that names a chunk, and how it wants to access it.
  struct Naming {
    Waiter* waiter = nullptr;
    Access access = Access::kRead;
  };

  AdmissionQueue() = default;
  AdmissionQueue(const AdmissionQueue&) = delete;
  AdmissionQueue& operator=(const AdmissionQueue&) = delete;
  ~AdmissionQueue();

  // No call waits, and no change is left.
  bool empty() const { return watching_.empty() && changed_.empty(); }

  // The call waits from now on, and is the youngest. REQUIRES: it does not wait; `watched` is a
  // number in its chunks, which do not change while it waits.
  void Add(Waiter& waiter, uint32_t watched, WaitsFor reason);
  // It watches another chunk, or waits for another reason. REQUIRES: it waits.
  void Watch(Waiter& waiter, uint32_t watched, WaitsFor reason);

  // True: a call watches the chunk, and TakeChanged() will return it.
  bool NoteChange(ChunkIndex index) { return !watching_.empty() && NoteIfWatched(index); }
  // Removes the newest change; nullopt: there is none.
  absl::optional<ChunkIndex> TakeChanged();

  // Each returns the oldest call of its kind that is younger than `age`; nullptr: there is none.
  Waiter* NextWatching(ChunkIndex index, uint64_t age) const;
  const Naming* NextNaming(ChunkIndex index, uint64_t age) const;
  Waiter* NextStepForRoom(Tier tier, uint64_t age) const;
  // The oldest fetch at the tier that waits for room; nullptr: there is none.
  Waiter* OldestFetchForRoom(Tier tier) const;
  // The calls at the tier that leases exclude, and each of them in turn.
  size_t excluded(Tier tier) const { return at(tier).excluded.size(); }
  // REQUIRES: excluded(tier) > 0.
  Waiter& NextExcluded(Tier tier);
  // Chunks of the largest call at the tier.
  uint32_t LargestAt(Tier tier) const;

  // Holds when all changes have been taken.
  void CheckInvariants() const;

 private:
  friend class QueuePlace;
  using ByAge = std::map<uint64_t, Waiter*>;
  struct Queues {
    ByAge fetches_for_room, steps_for_room, excluded;
    std::map<size_t, size_t> sizes;  // Numbers of calls, by their number of chunks.
    uint64_t last_excluded = 0;      // The age of the call that NextExcluded() returned.
  };

  Queues& at(Tier tier) { return queues_[static_cast<int>(tier)]; }
  const Queues& at(Tier tier) const { return queues_[static_cast<int>(tier)]; }
  ByAge& QueueOf(const Waiter& waiter);
  bool NoteIfWatched(ChunkIndex index);
  void Enter(Waiter& waiter, uint32_t watched, WaitsFor reason);
  void Unwatch(Waiter& waiter);
  void Remove(Waiter& waiter);

  uint64_t last_age_ = 0;
  std::array<Queues, kTiers> queues_;
  // By (chunk, age). `naming_` has an entry for each chunk of a call, `watching_` one for the chunk
  // that the call watches.
  std::map<std::pair<ChunkIndex, uint64_t>, Naming> naming_;
  std::map<std::pair<ChunkIndex, uint64_t>, Waiter*> watching_;
  std::vector<ChunkIndex> changed_;  // Watched chunks whose pins changed.
};

inline void QueuePlace::Leave() {
  if (calls_ != nullptr) calls_->Remove(*waiter_);
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_ADMISSION_QUEUE_H_

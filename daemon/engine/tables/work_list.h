// WorkList: the work that the handlers of an event leave to Settle(), each
// piece listed once. Engine-internal.
//
// Four kinds of work: signals to other classes (oldest first), chunks that take their
// next step (oldest first), room checks of a tier of a job (newest first), and jobs that may
// prefetch or write back (newest first). Dispatcher takes them in this order until none is left,
// and lists more meanwhile.
//
// Ownership: the list points at jobs, which it does not own. ListedWork is a
// member of each job and remembers what is listed; it checks that no work is
// left when the job goes.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_WORK_LIST_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_WORK_LIST_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "base/check.h"
#include "daemon/engine/interface/types.h"
#include "daemon/engine/tables/chunk_queue.h"
#include "daemon/engine/tables/signals.h"

namespace memtide {

struct Job;

// ListedWork is the work for one job in the WorkList.
class ListedWork {
 public:
  // `job` owns this object.
  explicit ListedWork(Job* job) : job_(job) {}
  ListedWork(const ListedWork&) = delete;
  ListedWork& operator=(const ListedWork&) = delete;
  ~ListedWork() {
    MEMTIDE_CHECK(room_checks_.empty() && !prefetch_) << "a job goes, its work stays";
  }

 private:
  friend class WorkList;
  Job* const job_;
  TierSet room_checks_;
  bool prefetch_ = false;
};

class WorkList {
 public:
  struct RoomCheck {
    Job* job = nullptr;
    Tier tier = Tier::kHost;
  };

  bool empty() const {
    return signals_.empty() && chunks_.empty() && room_checks_.empty() && prefetching_.empty();
  }

  void Send(Signal signal) { signals_.push_back(std::move(signal)); }
  bool has_signals() const { return !signals_.empty(); }
  // Removes all signals, oldest first.
  std::vector<Signal> TakeSignals() { return std::exchange(signals_, {}); }

  // A transfer has ended, or memory was made.
  void NoteMovement() { has_moved_ = true; }
  // Whether that was noted since the last call.
  bool TakeMovement() { return std::exchange(has_moved_, false); }

  // Work that is listed already is not listed again.
  // REQUIRES: index != kNoChunk.
  void AddChunk(ChunkIndex index) { chunks_.Add(index); }
  // REQUIRES: tier != Tier::kSsd. No slot of that tier waits for another copy
  // to leave.
  void AddRoomCheck(ListedWork& work, Tier tier) {
    MEMTIDE_CHECK(tier != Tier::kSsd);
    if (work.room_checks_.has(tier)) return;
    work.room_checks_.Add(tier);
    room_checks_.push_back({&work, tier});
  }
  void AddPrefetch(ListedWork& work) {
    if (work.prefetch_) return;
    work.prefetch_ = true;
    prefetching_.push_back(&work);
  }

  // Removes the oldest chunk; nullopt: there is none.
  absl::optional<ChunkIndex> TakeChunk() {
    if (chunks_.empty()) return absl::nullopt;
    return chunks_.Take();
  }
  // Removes the newest room check; nullopt: there is none.
  absl::optional<RoomCheck> TakeRoomCheck() {
    if (room_checks_.empty()) return absl::nullopt;
    const Listed check = room_checks_.back();
    room_checks_.pop_back();
    check.work->room_checks_.Remove(check.tier);
    return RoomCheck{check.work->job_, check.tier};
  }
  // The job that may prefetch next; nullptr: there is none. It stays listed
  // until FinishPrefetch().
  Job* prefetching() const { return prefetching_.empty() ? nullptr : prefetching_.back()->job_; }
  // REQUIRES: prefetching() != nullptr.
  void FinishPrefetch() {
    MEMTIDE_CHECK(!prefetching_.empty());
    prefetching_.back()->prefetch_ = false;
    prefetching_.pop_back();
  }

  void CheckInvariants() const;

 private:
  struct Listed {
    ListedWork* work = nullptr;
    Tier tier = Tier::kHost;
  };
  std::vector<Signal> signals_;
  bool has_moved_ = false;
  ChunkQueue chunks_;
  std::vector<Listed> room_checks_;
  std::vector<ListedWork*> prefetching_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_WORK_LIST_H_

// StableStorage: what a power cut leaves of the stores of an EngineByteHarness, and the snapshots
// there. A write counts when it has been flushed; until then a cut leaves it, rubbish, or nothing.
#ifndef MEMTIDE_DAEMON_ENGINE_TESTING_STABLE_STORAGE_H_
#define MEMTIDE_DAEMON_ENGINE_TESTING_STABLE_STORAGE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/engine.h"

namespace memtide {

class StableStorage {
 public:
  enum class Fate { kNothing, kWhole, kRubbish };
  // The part of a snapshot that is being saved which a cut leaves.
  enum class SavedPart { kNothing, kWrites, kAll };
  // By store and offset. Bytes that were never written are zero.
  using Contents = std::map<std::pair<StoreId, uint64_t>, std::string>;

  void Write(const StorePlace& place, std::string bytes) {
    writes_.emplace_back(std::make_pair(place.store, place.offset.count()), std::move(bytes));
  }
  // Writes to the store that were not flushed do not count. A snapshot may still name it.
  void Drop(StoreId store) {
    const auto is_of_it = [store](const auto& write) { return write.first.first == store; };
    writes_.erase(std::remove_if(writes_.begin(), writes_.end(), is_of_it), writes_.end());
  }
  void Save(const Snapshot& snapshot) {
    Flush();
    saved_[snapshot.job.job] = snapshot;
  }
  void Remove(JobId job) { saved_.erase(job); }
  void SavePart(const Snapshot& snapshot, SavedPart part) {
    if (part == SavedPart::kWrites) Flush();
    if (part == SavedPart::kAll) Save(snapshot);
  }
  // The writes that were not flushed have these fates, which are used in turn.
  void EndWrites(const std::vector<Fate>& fates) {
    size_t ended = 0;
    for (auto& [place, bytes] : std::exchange(writes_, {})) {
      const Fate fate = fates[ended++ % fates.size()];
      if (fate == Fate::kRubbish) bytes.assign(bytes.size(), '\xEE');
      if (fate != Fate::kNothing) contents_[place] = std::move(bytes);
    }
  }

  const std::map<JobId, Snapshot>& saved() const { return saved_; }
  const Contents& contents() const { return contents_; }

 private:
  void Flush() { EndWrites({Fate::kWhole}); }

  Contents contents_;
  std::deque<std::pair<Contents::key_type, std::string>> writes_;  // Oldest first.
  std::map<JobId, Snapshot> saved_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TESTING_STABLE_STORAGE_H_

// ChunkQueue: a first-in-first-out queue of chunk indices in which each index stands at most once.
// Engine-internal.
//
// One bit for each index up to the highest one ever added says whether the index is in the queue,
// so that Add() takes constant time and the chunk table needs no flag of its own.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_CHUNK_QUEUE_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_CHUNK_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "daemon/engine/interface/types.h"

namespace memtide {

class ChunkQueue {
 public:
  bool empty() const { return next_ == indices_.size(); }

  // Appends the index, unless it is in the queue. REQUIRES: index != kNoChunk.
  void Add(ChunkIndex index) {
    MEMTIDE_CHECK(index != kNoChunk);
    if (index.value() >= contains_.size()) contains_.resize(size_t{index.value()} + 1);
    if (contains_[index.value()]) return;
    contains_[index.value()] = true;
    indices_.push_back(index);
  }

  // Removes and returns the oldest index, which may be added again from now on.
  // REQUIRES: !empty().
  ChunkIndex Take() {
    MEMTIDE_CHECK(!empty());
    const ChunkIndex index = indices_[next_++];
    contains_[index.value()] = false;
    if (empty()) {
      indices_.clear();  // Keeps the capacity for the next event.
      next_ = 0;
    }
    return index;
  }

  void CheckInvariants() const {
    MEMTIDE_CHECK(next_ < indices_.size() || indices_.empty());
    for (size_t i = next_; i < indices_.size(); ++i) MEMTIDE_CHECK(contains_[indices_[i].value()]);
    const auto bits = std::count(contains_.begin(), contains_.end(), true);
    MEMTIDE_CHECK(static_cast<size_t>(bits) == indices_.size() - next_)
        << "an index stands twice in the queue";
  }

 private:
  std::vector<ChunkIndex> indices_;  // Indices before next_ have been taken.
  size_t next_ = 0;
  std::vector<bool> contains_;  // By index.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_CHUNK_QUEUE_H_

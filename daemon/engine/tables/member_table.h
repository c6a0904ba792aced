// MemberTable: the chunks of a job by member number, which is how the policies know them.
// Engine-internal.
//
// A new chunk gets the lowest free number: what an iteration frees and allocates anew, the next
// iteration finds under the same number. A chunk that is freed while a transfer or step uses it is
// not live any more, but keeps its number until it is removed.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_MEMBER_TABLE_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_MEMBER_TABLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "daemon/engine/interface/types.h"

namespace memtide {

class MemberTable {
 public:
  // All numbers that were ever used are below size().
  size_t size() const { return chunks_.size(); }
  // kNoChunk: the number is free, or was never used.
  ChunkIndex operator[](Member member) const {
    return member.value() < chunks_.size() ? chunks_[member.value()] : kNoChunk;
  }
  // Its chunks, which may be freed and removed in a loop over them.
  std::vector<ChunkIndex> chunks() const {
    std::vector<ChunkIndex> chunks = chunks_;
    chunks.erase(std::remove(chunks.begin(), chunks.end(), kNoChunk), chunks.end());
    return chunks;
  }

  // No number is in use.
  bool empty() const { return chunks_.size() == free_.size(); }
  uint32_t live() const { return live_; }

  // Adds a live chunk and returns its number. REQUIRES: index != kNoChunk.
  Member Add(ChunkIndex index) {
    MEMTIDE_CHECK(index != kNoChunk);
    if (free_.empty()) {
      free_.push(static_cast<uint32_t>(chunks_.size()));
      chunks_.push_back(kNoChunk);
      is_live_.push_back(false);
    }
    const Member member(free_.top());
    free_.pop();
    chunks_[member.value()] = index;
    is_live_[member.value()] = true;
    ++live_;
    return member;
  }
  // The chunk with this number is not live any more. REQUIRES: it was.
  void Free(Member member) {
    MEMTIDE_CHECK((*this)[member] != kNoChunk && is_live_[member.value()])
        << "member " << member.value() << " is freed, but has no live chunk";
    is_live_[member.value()] = false;
    --live_;
  }
  // The number is free again. REQUIRES: Free() was called for its chunk.
  void Remove(Member member) {
    MEMTIDE_CHECK((*this)[member] != kNoChunk)
        << "member " << member.value() << " is removed twice";
    MEMTIDE_CHECK(!is_live_[member.value()])
        << "member " << member.value() << " is removed while its chunk is live";
    chunks_[member.value()] = kNoChunk;
    free_.push(member.value());
  }

  void CheckInvariants() const {
    const auto none = std::count(chunks_.begin(), chunks_.end(), kNoChunk);
    MEMTIDE_CHECK(static_cast<size_t>(none) == free_.size());
    for (size_t i = 0; i < chunks_.size(); ++i) {
      MEMTIDE_CHECK(!is_live_[i] || chunks_[i] != kNoChunk) << "member " << i << " has no chunk";
    }
    MEMTIDE_CHECK(std::count(is_live_.begin(), is_live_.end(), true) == live_);
  }

 private:
  std::vector<ChunkIndex> chunks_;  // By member number.
  std::vector<bool> is_live_;       // By member number.
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<uint32_t>> free_;
  uint32_t live_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_MEMBER_TABLE_H_

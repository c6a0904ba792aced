// TierMark: the tier that a pending movement of a chunk concerns, if there is one. MarkCount: how
// many chunks are marked so. Engine-internal.
//
// A mark has two bytes, where a token with a pointer to its count would have sixteen: there are two
// in each of up to a million chunks. So a mark is set and cleared by its count alone.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_TIER_MARK_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_TIER_MARK_H_

#include <cstdint>

#include "absl/types/optional.h"
#include "base/check.h"
#include "daemon/pool/tier.h"

namespace memtide {

class TierMark {
 public:
  bool has_value() const { return tier_.has_value(); }
  // REQUIRES: has_value().
  Tier operator*() const { return *tier_; }
  Tier value_or(Tier other) const { return tier_.value_or(other); }

 private:
  friend class MarkCount;
  absl::optional<Tier> tier_;
};

class MarkCount {
 public:
  uint32_t value() const { return value_; }

  // REQUIRES: the mark is not set.
  void Set(TierMark& mark, Tier tier) {
    MEMTIDE_CHECK(!mark.has_value()) << "a mark is counted twice";
    mark.tier_ = tier;
    ++value_;
  }
  // REQUIRES: Set() of this count set the mark.
  void Clear(TierMark& mark) {
    MEMTIDE_CHECK(mark.has_value() && value_ > 0) << "a mark was not counted";
    mark.tier_.reset();
    --value_;
  }

 private:
  uint32_t value_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_TIER_MARK_H_

// TokenBucket: how much may be written now, so that in no 24 hours more than a daily budget is.
//
// The bucket holds tokens of a byte each. It fills at an even rate, up to its capacity of a
// hundredth of the budget, or of the largest write if that is more, and the rate is the rest of the
// budget over a day: what was in the bucket and what comes in 24 hours are the budget together.
// Time is virtual. No fraction of a byte is lost, so that a demand above the budget gets 99% of it.
//
// Thread safety: thread-compatible.
#ifndef MEMTIDE_DAEMON_ENGINE_WRITES_TOKEN_BUCKET_H_
#define MEMTIDE_DAEMON_ENGINE_WRITES_TOKEN_BUCKET_H_

#include <cstdint>

#include "absl/numeric/int128.h"
#include "base/bytes.h"
#include "base/clock.h"

namespace memtide {

inline constexpr Duration kDay = std::chrono::hours(24);

class TokenBucket {
 public:
  enum class Start {
    kFull,   // Nothing was written in the last 24 hours.
    kEmpty,  // Whatever was written before, no 24 hours have more than the budget.
  };

  // Zero: no budget, and always enough tokens.
  explicit TokenBucket(Bytes per_day, Start start = Start::kFull)
      : per_day_(per_day), starts_full_(start == Start::kFull) {}

  Bytes per_day() const { return per_day_; }
  bool has_budget() const { return !per_day_.IsZero(); }
  // Whether there are tokens for `size` now. Asking for more than the capacity raises it, so that
  // each write that is smaller than the budget has its turn. REQUIRES: `now` does not go back.
  bool Has(Instant now, Bytes size);
  // REQUIRES: Has(now, size).
  void Take(Bytes size);
  // For a write that did not begin.
  void Return(Bytes size);

 private:
  uint64_t Capacity() const;
  void Fill(Instant now);

  Bytes per_day_;
  bool starts_full_;
  bool started_ = false;
  Bytes largest_;  // The largest write that was asked for.
  uint64_t tokens_ = 0;
  absl::uint128 fraction_ = 0;  // Part of a token, in units of 1 / kDay.
  Instant filled_at_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_WRITES_TOKEN_BUCKET_H_

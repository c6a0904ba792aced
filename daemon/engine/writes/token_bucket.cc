#include "daemon/engine/writes/token_bucket.h"

#include <algorithm>

#include "base/check.h"

namespace memtide {

namespace {

// The part of the budget that may be written at once.
constexpr uint64_t kBurstPart = 100;

}  // namespace

uint64_t TokenBucket::Capacity() const {
  return std::min(per_day_.count(), std::max(per_day_.count() / kBurstPart, largest_.count()));
}

void TokenBucket::Fill(Instant now) {
  if (!started_) {
    started_ = true;
    filled_at_ = now;
    if (starts_full_) tokens_ = Capacity();
  }
  MEMTIDE_CHECK(now >= filled_at_);
  const uint64_t elapsed = static_cast<uint64_t>((now - filled_at_).count());
  filled_at_ = now;
  const absl::uint128 day = static_cast<uint64_t>(kDay.count());
  const uint64_t capacity = Capacity();
  const absl::uint128 grown =
      absl::uint128(per_day_.count() - capacity) * absl::uint128(elapsed) + fraction_;
  const absl::uint128 tokens = absl::uint128(tokens_) + grown / day;
  fraction_ = tokens < capacity ? grown % day : absl::uint128(0);
  tokens_ = absl::Uint128Low64(std::min(tokens, absl::uint128(capacity)));
}

bool TokenBucket::Has(Instant now, Bytes size) {
  if (!has_budget()) return true;
  Fill(now);  // At the rate that held so far.
  largest_ = std::max(largest_, size);
  return tokens_ >= size.count();
}

void TokenBucket::Take(Bytes size) {
  if (!has_budget()) return;
  MEMTIDE_CHECK(tokens_ >= size.count());
  tokens_ -= size.count();
}

void TokenBucket::Return(Bytes size) {
  if (has_budget()) tokens_ = std::min(Capacity(), tokens_ + size.count());
}

}  // namespace memtide

#include "daemon/io/stripes.h"

#include <numeric>
#include <utility>

#include "base/check.h"

namespace memtide {
namespace {

// The directory that gets the next stripe, when `dealt` of each one's stripes are dealt: its stripe
// c of k belongs at (2c + 1) / 2k of the cycle. The first of equals.
size_t NextDirectory(const StripeCounts& counts, const StripeCounts& dealt) {
  size_t next = counts.size();
  for (size_t i = 0; i < counts.size(); ++i) {
    if (dealt[i] == counts[i]) continue;
    const bool sooner = next == counts.size() ||
                        (2 * dealt[i] + 1) * counts[next] < (2 * dealt[next] + 1) * counts[i];
    if (sooner) next = i;
  }
  return next;
}

}  // namespace

bool Stripes::Valid(const StripeCounts& counts) {
  // The counts may come from a damaged journal, so the sum must not overflow.
  uint64_t cycle = 0;
  for (const uint32_t count : counts) cycle += count;
  return cycle > 0 && cycle <= kMostStripesPerCycle;
}

Stripes::Stripes(StripeCounts counts) : counts_(std::move(counts)) {
  MEMTIDE_CHECK(Valid(counts_)) << counts_.size() << " directories";
  const size_t cycle = std::accumulate(counts_.begin(), counts_.end(), size_t{0});
  positions_.resize(directories());
  StripeCounts dealt(directories());
  for (size_t position = 0; position < cycle; ++position) {
    before_.insert(before_.end(), dealt.begin(), dealt.end());
    const size_t directory = NextDirectory(counts_, dealt);
    order_.push_back(static_cast<uint16_t>(directory));
    positions_[directory].push_back(static_cast<uint16_t>(position));
    ++dealt[directory];
  }
}

Bytes Stripes::FirstIn(size_t directory, Bytes offset) const {
  const uint64_t stripe = offset / kStripeSize;
  const size_t position = stripe % order_.size();
  if (order_[position] == directory) return offset;
  const std::vector<uint16_t>& positions = positions_[directory];
  const size_t next = before_[position * directories() + directory];
  const uint64_t cycle = stripe - position;
  // Behind the last one of this cycle comes the first one of the next.
  return kStripeSize *
         (next < positions.size() ? cycle + positions[next] : cycle + order_.size() + positions[0]);
}

Bytes Stripes::FileSize(size_t directory, Bytes size) const {
  const Bytes whole = kStripeSize * Before(directory, size / kStripeSize);
  return DirectoryOf(size) == directory ? whole + Within(size) : whole;
}

}  // namespace memtide

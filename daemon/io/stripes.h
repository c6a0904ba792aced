// Stripes: where the bytes of a store lie in its files, one in each directory.
//
// A store is cut into stripes of kStripeSize. They are dealt to the directories in a cycle that
// repeats: of the stripes of a cycle each directory has a number of its own, spread evenly over the
// cycle. So the pieces of a large chunk are on all directories, and small chunks that follow each
// other in different ones. With one stripe each, that is round robin. A directory with none holds
// nothing. Pure arithmetic on tables of a few KiB; each lookup takes constant time.
#ifndef MEMTIDE_DAEMON_IO_STRIPES_H_
#define MEMTIDE_DAEMON_IO_STRIPES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"

namespace memtide {

inline constexpr Bytes kStripeSize = MiB(8);

// The stripes of one cycle that each directory has, by directory.
using StripeCounts = std::vector<uint32_t>;
inline constexpr size_t kMostStripesPerCycle = 256;

class Stripes {
 public:
  // Whether there is at least one stripe, and at most kMostStripesPerCycle.
  static bool Valid(const StripeCounts& counts);
  static StripeCounts Equal(size_t directories) { return StripeCounts(directories, 1); }

  // REQUIRES: Valid(counts).
  explicit Stripes(StripeCounts counts);

  const StripeCounts& counts() const { return counts_; }
  size_t directories() const { return counts_.size(); }
  size_t DirectoryOf(Bytes offset) const { return order_[Position(offset)]; }
  Bytes FileOffset(Bytes offset) const {
    return kStripeSize * Before(DirectoryOf(offset), offset / kStripeSize) + Within(offset);
  }
  // Where the stripe that holds `offset` ends.
  Bytes EndOfStripe(Bytes offset) const { return offset - Within(offset) + kStripeSize; }
  // The first byte at or after `offset` that lies in `directory`.
  // REQUIRES: counts()[directory] > 0.
  Bytes FirstIn(size_t directory, Bytes offset) const;
  // How long the file in `directory` of a store of `size` bytes is.
  Bytes FileSize(size_t directory, Bytes size) const;

 private:
  static Bytes Within(Bytes offset) { return Bytes(offset.count() % kStripeSize.count()); }
  size_t Position(Bytes offset) const { return offset / kStripeSize % order_.size(); }
  // How many of the first `stripes` stripes of a store lie in `directory`.
  uint64_t Before(size_t directory, uint64_t stripes) const {
    return stripes / order_.size() * counts_[directory] +
           before_[stripes % order_.size() * directories() + directory];
  }

  StripeCounts counts_;
  std::vector<uint16_t> order_;   // The directory of each stripe of the cycle.
  std::vector<uint16_t> before_;  // By position and directory: its stripes before there.
  std::vector<std::vector<uint16_t>> positions_;  // By directory: its stripes in the cycle.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_STRIPES_H_

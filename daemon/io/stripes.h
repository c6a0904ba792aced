// Stripes: where the bytes of a store lie in its files, one in each directory.
//
// A store is cut into stripes of kStripeSize; stripe i lies in directory i % n, at file offset
// (i / n) * kStripeSize. So the pieces of a large chunk are spread evenly over the directories, and
// small chunks that follow each other lie in different ones. Pure arithmetic.
#ifndef MEMTIDE_DAEMON_IO_STRIPES_H_
#define MEMTIDE_DAEMON_IO_STRIPES_H_

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace memtide {

inline constexpr Bytes kStripeSize = MiB(8);

class Stripes {
 public:
  // REQUIRES: directories > 0.
  explicit Stripes(size_t directories) : directories_(directories) {}

  size_t directories() const { return directories_; }
  size_t DirectoryOf(Bytes offset) const { return (offset / kStripeSize) % directories_; }
  Bytes FileOffset(Bytes offset) const {
    return kStripeSize * (offset / kStripeSize / directories_) + Within(offset);
  }
  // Where the stripe that holds `offset` ends.
  Bytes EndOfStripe(Bytes offset) const { return offset - Within(offset) + kStripeSize; }
  // The first byte at or after `offset` that lies in `directory`.
  Bytes FirstIn(size_t directory, Bytes offset) const {
    const size_t distance = (directory + directories_ - DirectoryOf(offset)) % directories_;
    return distance == 0 ? offset : offset - Within(offset) + kStripeSize * distance;
  }
  // How long the file in `directory` of a store of `size` bytes is.
  Bytes FileSize(size_t directory, Bytes size) const {
    const Bytes whole = kStripeSize * (size / kStripeSize / directories_);
    const Bytes rest = size - whole * directories_;
    const Bytes before = kStripeSize * directory;
    if (rest <= before) return whole;
    const Bytes own = rest - before;
    return whole + (own < kStripeSize ? own : kStripeSize);
  }

 private:
  static Bytes Within(Bytes offset) { return Bytes(offset.count() % kStripeSize.count()); }

  size_t directories_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_STRIPES_H_

#include "bench/read_loop.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/read_loop.cc"
#include "hwy/foreach_target.h"
// Follows the line above, which includes this file once for each instruction set.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace memtide {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Without requests, and with those of 512 or 2048 bytes ahead, it is 4 to 16% slower (Sapphire
// Rapids).
constexpr size_t kAhead = 1024;
constexpr size_t kLine = 64;

uint64_t Sum(const uint64_t* words, size_t count) {
  const hn::ScalableTag<uint64_t> d;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kWordsAhead = kAhead / sizeof(uint64_t), kWords = 4 * kLine / sizeof(uint64_t);
  // Four sums, as an addition takes longer than a load.
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (size_t i = 0; i < count; i += kWords) {
    for (size_t k = 0; k < kWords; k += kLine / sizeof(uint64_t)) {
      hwy::Prefetch(words + i + kWordsAhead + k);
    }
    for (size_t k = 0; k < kWords; k += 4 * lanes) {
      a = hn::Add(a, hn::Load(d, words + i + k));
      b = hn::Add(b, hn::Load(d, words + i + k + lanes));
      c = hn::Add(c, hn::Load(d, words + i + k + 2 * lanes));
      e = hn::Add(e, hn::Load(d, words + i + k + 3 * lanes));
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

}  // namespace HWY_NAMESPACE
}  // namespace memtide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"

namespace memtide {

HWY_EXPORT(Sum);

uint64_t ReadLoop(const char* from, Bytes size) {
  MEMTIDE_CHECK(size.IsMultipleOf(Bytes(256))) << size;
  return HWY_DYNAMIC_DISPATCH(Sum)(reinterpret_cast<const uint64_t*>(from),
                                   size.count() / sizeof(uint64_t));
}

}  // namespace memtide
#endif  // HWY_ONCE

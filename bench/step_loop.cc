#include "bench/step_loop.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/step_loop.cc"
#include "hwy/foreach_target.h"
// Follows the line above, which includes this file once for each instruction set.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace memtide {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The number of elements of one array that are read or written before those of the next array.
// Bursts of one cache line take twice as long, and bursts of 256 elements an eighth longer.
constexpr size_t kBurst = 128;

HWY_INLINE void Prefetch(const float* array, size_t size) {
  for (size_t k = 0; k < size; k += 16) hwy::Prefetch(array + k);
}

HWY_INLINE void AddBurst(const float* a, const float* b, float* sums, size_t size) {
  const hn::ScalableTag<float> d;
  for (size_t k = 0; k < size; k += hn::Lanes(d)) {
    hn::Stream(hn::Load(d, a + k) + hn::Load(d, b + k), d, sums + k);
  }
}

// Adds a burst of elements and the words of a gradient that has 4 or 2 bytes an element.
HWY_INLINE void AddBursts(const float* a, const float* gradient, float* sums, size_t per_word) {
  const size_t size = kBurst / per_word;
  for (size_t k = 0; k < kBurst; k += size) AddBurst(a + k, gradient, sums + k, size);
}

// 16-bit gradients are added as pairs, not as numbers, because only the bytes matter here.
void Loop(const StepArrays& arrays, size_t begin, size_t end) {
  const auto* const gradients = static_cast<const float*>(arrays.gradient);
  auto* const copies = reinterpret_cast<float*>(arrays.copy);
  const size_t per_word = copies == nullptr ? 1 : 2;
  for (size_t i = begin; i < end; i += kBurst) {
    const float* const gradient = gradients + i / per_word;
    Prefetch(gradient + kBurst / per_word, kBurst / per_word);
    Prefetch(arrays.parameter + i + kBurst, kBurst);
    Prefetch(arrays.momentum + i + kBurst, kBurst);
    Prefetch(arrays.variance + i + kBurst, kBurst);
    AddBursts(arrays.parameter + i, gradient, arrays.new_parameter + i, per_word);
    AddBursts(arrays.momentum + i, gradient, arrays.new_momentum + i, per_word);
    AddBursts(arrays.variance + i, gradient, arrays.new_variance + i, per_word);
    if (copies != nullptr) {
      AddBurst(arrays.parameter + i, gradient, copies + i / 2, kBurst / 2);
    }
  }
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace memtide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"

namespace memtide {

HWY_EXPORT(Loop);

void StepLoop(const StepArrays& arrays, size_t begin, size_t end) {
  MEMTIDE_CHECK(begin % 256 == 0 && end % 256 == 0) << begin << " to " << end;
  HWY_DYNAMIC_DISPATCH(Loop)(arrays, begin, end);
}

}  // namespace memtide
#endif  // HWY_ONCE

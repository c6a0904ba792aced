#include "daemon/optimizer/gradient.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "daemon/optimizer/gradient.cc"
#include "hwy/foreach_target.h"
// After the line above, which includes this file once for each instruction set.
#include "daemon/optimizer/tiles-inl.h"

#ifndef MEMTIDE_DAEMON_OPTIMIZER_GRADIENT_CC_
#define MEMTIDE_DAEMON_OPTIMIZER_GRADIENT_CC_
namespace memtide::optimizer {

struct ScaleCall {
  Range range;
  Source from;
  Sink to;
  float factor = 1;
};

}  // namespace memtide::optimizer
#endif  // MEMTIDE_DAEMON_OPTIMIZER_GRADIENT_CC_

HWY_BEFORE_NAMESPACE();
namespace memtide::optimizer {
namespace HWY_NAMESPACE {

struct ScaleTiles {
  const ScaleCall& call;
  uint64_t* not_finite;

  // A value that is finite in fp32 may overflow in fp16, so this counts after rounding.
  template <class D>
  HWY_INLINE size_t NotFinite(D d, hn::Vec<D> value) const {
    const Words<D> words;
    auto bits = hn::BitCast(words, value);
    auto exponent = hn::Set(words, 0x7f800000);
    if (call.to.format == Format::kFloat16) {
      bits = HalvesOfFloats(d, value);
      exponent = hn::Set(words, 0x7c00);
    } else if (call.to.format == Format::kBfloat16) {
      bits = hn::ShiftLeft<16>(Bfloat16sOfFloats(d, value, ToNearestEven(d, value)));
    }
    // An exponent of ones only is infinity or NaN, in each of the formats.
    return hn::CountTrue(words, hn::And(bits, exponent) == exponent);
  }

  HWY_INLINE void At(size_t begin, size_t size) const {
    Tile widened, scaled;
    const float* const from = Widen(call.from, begin, size, &widened);
    const hn::ScalableTag<float> d;
    // The tile is padded with zeros, which are finite and so add nothing to the count.
    for (size_t i = 0; i < size; i += hn::Lanes(d)) {
      const auto value = hn::LoadU(d, from + i) * hn::Set(d, call.factor);
      *not_finite += NotFinite(d, value);
      hn::Store(value, d, scaled.values + i);
    }
    Settle(scaled.values, call.to, begin, size, nullptr);
  }
};

uint64_t RunScale(const ScaleCall& call) {
  uint64_t not_finite = 0;
  ForEachTile(call.range, 0, call.range.size, ScaleTiles{call, &not_finite});
  return not_finite;
}

}  // namespace HWY_NAMESPACE
}  // namespace memtide::optimizer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

#include "base/check.h"

namespace memtide::optimizer {

HWY_EXPORT(RunScale);

uint64_t Scale(const Input& gradient, double factor, const Output& scaled) {
  MEMTIDE_CHECK(std::isfinite(static_cast<float>(factor))) << factor;
  CheckSpans({gradient}, {scaled}, gradient.size());
  ScaleCall call;
  call.range.size = gradient.size();
  call.from = {gradient.data(), gradient.format()};
  call.to = {scaled.data(), scaled.format()};
  call.factor = static_cast<float>(factor);
  DecideStreaming({gradient}, {scaled}, {&call.to}, &call.range);
  return HWY_DYNAMIC_DISPATCH(RunScale)(call);
}

uint64_t CountNonFinite(const Input& gradient) {
  CheckSpans({gradient}, {}, gradient.size());
  ScaleCall call;
  call.range.size = gradient.size();
  call.from = {gradient.data(), gradient.format()};
  return HWY_DYNAMIC_DISPATCH(RunScale)(call);
}

}  // namespace memtide::optimizer
#endif  // HWY_ONCE

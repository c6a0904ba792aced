// Arithmetic on vectors for one instruction set: conversions, fused multiply-add, the random bits
// of stochastic rounding. Highway includes this once for each.
//
// Everything here gives the same bits whatever the vectors' width. Conversions are done with
// integer operations, since the instructions for them differ in how they round or what they make
// of a NaN; Fma rounds once also where the CPU has no such instruction.
#if defined(MEMTIDE_DAEMON_OPTIMIZER_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEMTIDE_DAEMON_OPTIMIZER_VECTORS_INL_H_
#undef MEMTIDE_DAEMON_OPTIMIZER_VECTORS_INL_H_
#else
#define MEMTIDE_DAEMON_OPTIMIZER_VECTORS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "daemon/optimizer/kernel.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace memtide::optimizer {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using Words = hn::Rebind<uint32_t, D>;
template <class D>
using HalfWords = hn::Rebind<uint16_t, D>;

#if HWY_NATIVE_FMA
template <class V>
HWY_INLINE V Fma(V a, V b, V c) {
  return hn::MulAdd(a, b, c);
}
#else
// a * b is exact in double. The sum is rounded to odd, which loses nothing that the rounding to
// float needs to know.
HWY_INLINE float FmaOfOne(float a, float b, float c) {
  const double product = static_cast<double>(a) * b;
  const double sum = product + c;
  const double added = sum - product;
  const double error = (product - (sum - added)) + (c - added);
  uint64_t bits;
  std::memcpy(&bits, &sum, sizeof(bits));
  if ((error > 0 || error < 0) && (bits & 1) == 0) bits += (error > 0) == (sum > 0) ? 1 : -1;
  double odd;
  std::memcpy(&odd, &bits, sizeof(odd));
  return static_cast<float>(odd);
}
template <class V>
HWY_INLINE V Fma(V a, V b, V c) {
  const hn::DFromV<V> d;
  HWY_ALIGN float as[HWY_MAX_BYTES / sizeof(float)];
  HWY_ALIGN float bs[HWY_MAX_BYTES / sizeof(float)];
  HWY_ALIGN float cs[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(a, d, as);
  hn::Store(b, d, bs);
  hn::Store(c, d, cs);
  for (size_t i = 0; i < hn::Lanes(d); ++i) as[i] = FmaOfOne(as[i], bs[i], cs[i]);
  return hn::Load(d, as);
}
#endif

template <class D, class W>
HWY_INLINE hn::Vec<D> FloatsOfHalves(D d, W half) {
  const Words<D> words;
  const auto magnitude = hn::And(half, hn::Set(words, 0x7fff));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(half, magnitude));
  // As if the exponent had the wider bias; the product makes denormals right too.
  const auto scaled = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)),
                              hn::Set(d, 5192296858534827628530496329220096.0f));  // 2^112
  const auto special = hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(words, 0x7f800000));
  const auto is_special = magnitude > hn::Set(words, 0x7bff);
  const auto bits = hn::IfThenElse(is_special, special, hn::BitCast(words, scaled));
  return hn::BitCast(d, hn::Or(bits, sign));
}

template <class D>
HWY_INLINE hn::Vec<Words<D>> HalvesOfFloats(D d, hn::Vec<D> value) {
  const Words<D> words;
  const auto all = hn::BitCast(words, value);
  const auto magnitude = hn::And(all, hn::Set(words, 0x7fffffff));
  const auto sign = hn::ShiftRight<16>(hn::Xor(all, magnitude));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(words, 1));
  // Subtracts 112 from the exponent and rounds; a carry goes into the exponent, as it should.
  const auto normal = hn::ShiftRight<13>(magnitude + odd + hn::Set(words, uint32_t{0xc8000fff}));
  // Below 2^-14: adding 0.5 leaves the units of 2^-24, rounded, in the lowest bits.
  const auto half = hn::Set(d, 0.5f);
  const auto tiny =
      hn::BitCast(words, hn::Add(hn::BitCast(d, magnitude), half)) - hn::BitCast(words, half);
  auto bits = hn::IfThenElse(magnitude < hn::Set(words, 0x38800000), tiny, normal);
  const auto infinity = hn::Set(words, 0x7c00), nan = hn::Set(words, 0x7e00);
  bits = hn::IfThenElse(magnitude > hn::Set(words, 0x477fefff), infinity, bits);
  bits = hn::IfThenElse(magnitude > hn::Set(words, 0x7f800000), nan, bits);
  return hn::Or(bits, sign);
}

// The upper halves of fp32 values, to each of which `add` (below 2^16) was added.
template <class D>
HWY_INLINE hn::Vec<Words<D>> Bfloat16sOfFloats(D d, hn::Vec<D> value, hn::Vec<Words<D>> add) {
  const Words<D> words;
  const auto all = hn::BitCast(words, value);
  const auto is_nan = hn::And(all, hn::Set(words, 0x7fffffff)) > hn::Set(words, 0x7f800000);
  const auto quiet = hn::Or(hn::ShiftRight<16>(all), hn::Set(words, 0x40));
  return hn::IfThenElse(is_nan, quiet, hn::ShiftRight<16>(all + add));
}

template <class D>
HWY_INLINE hn::Vec<Words<D>> ToNearestEven(D d, hn::Vec<D> value) {
  const Words<D> words;
  const auto odd = hn::And(hn::ShiftRight<16>(hn::BitCast(words, value)), hn::Set(words, 1));
  return odd + hn::Set(words, 0x7fff);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const Source& from, size_t i) {
  if (from.data == nullptr) return hn::Set(d, from.initial);
  if (from.format == Format::kFloat32) {
    return hn::LoadU(d, static_cast<const float*>(from.data) + i);
  }
  const auto half = hn::LoadU(HalfWords<D>(), static_cast<const uint16_t*>(from.data) + i);
  const auto words = hn::PromoteTo(Words<D>(), half);
  if (from.format == Format::kBfloat16) return hn::BitCast(d, hn::ShiftLeft<16>(words));
  return FloatsOfHalves(d, words);
}

// Demotion saturates signed numbers, and these are below 2^16.
template <class D>
HWY_INLINE void StoreHalfWords(D, hn::Vec<Words<D>> words, uint16_t* to) {
  const HalfWords<D> half_words;
  const auto signed_words = hn::BitCast(hn::Rebind<int32_t, D>(), words);
  hn::StoreU(hn::DemoteTo(half_words, signed_words), half_words, to);
}

// The inputs of the random bits of stochastic rounding: keys, and the low half of the index of the
// span's element 0.
struct StochasticRounding {
  RoundingKeys keys;
  uint32_t first = 0;
};

template <class V>
HWY_INLINE V Scramble(V x) {
  const hn::DFromV<V> words;
  x = hn::Xor(x, hn::ShiftRight<16>(x)) * hn::Set(words, 0x21f0aaad);
  x = hn::Xor(x, hn::ShiftRight<15>(x)) * hn::Set(words, uint32_t{0xd35a2d97});
  return hn::Xor(x, hn::ShiftRight<15>(x));
}

// 16 random bits for each of the elements from i on.
template <class D>
HWY_INLINE hn::Vec<Words<D>> RandomBits(D, const StochasticRounding& rounding, size_t i) {
  const Words<D> words;
  const auto index = hn::Iota(words, rounding.first + static_cast<uint32_t>(i));
  const auto once = Scramble(hn::Xor(index, hn::Set(words, rounding.keys.first)));
  return hn::ShiftRight<16>(Scramble(once + hn::Set(words, rounding.keys.second)));
}

}  // namespace HWY_NAMESPACE
}  // namespace memtide::optimizer
HWY_AFTER_NAMESPACE();

#endif  // MEMTIDE_DAEMON_OPTIMIZER_VECTORS_INL_H_

// The loop over a range, tile by tile, for one instruction set: Highway includes this once for
// each.
//
// A tile is 128 elements. Elements that are not fp32 are widened into the first-level cache before
// the arithmetic, which so knows only fp32, and narrowed after it. Elements that are written past
// the caches go through there as well: whole lines of one span after the other, since several spans
// written by turns, in pieces of a line, are several times slower.
#if defined(MEMTIDE_DAEMON_OPTIMIZER_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEMTIDE_DAEMON_OPTIMIZER_TILES_INL_H_
#undef MEMTIDE_DAEMON_OPTIMIZER_TILES_INL_H_
#else
#define MEMTIDE_DAEMON_OPTIMIZER_TILES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "daemon/optimizer/kernel.h"
#include "daemon/optimizer/vectors-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace memtide::optimizer {
namespace HWY_NAMESPACE {

// Whole lines of every format, and whole vectors of every instruction set.
inline constexpr size_t kTile = 128;
inline constexpr size_t kVectorElements = std::max<size_t>(kLineElements, HWY_MAX_BYTES / 4);
static_assert(kTile % kVectorElements == 0);

struct alignas(64) Tile {
  float values[kTile];
};

// Copies the last elements of a span to `piece`, with zeros up to a whole vector of any width.
template <typename T>
HWY_INLINE void Pad(const T* from, size_t size, T* piece) {
  std::memcpy(piece, from, size * sizeof(T));
  const size_t past = size % kVectorElements;
  std::memset(piece + size, 0, (kVectorElements - past) * sizeof(T));
}

// Where the arithmetic reads elements [begin, begin + size) of a source, and zeros up to the next
// multiple of kVectorElements: there, or in `tile`.
HWY_INLINE const float* Widen(const Source& from, size_t begin, size_t size, Tile* tile) {
  const hn::ScalableTag<float> d;
  const bool is_whole = size % kVectorElements == 0;
  if (from.data == nullptr) {
    for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
      hn::Store(hn::Set(d, from.initial), d, tile->values + i);
    }
    return tile->values;
  }
  if (from.format == Format::kFloat32) {
    const float* const there = static_cast<const float*>(from.data) + begin;
    if (is_whole) return there;
    Pad(there, size, tile->values);
    return tile->values;
  }
  Source narrow = {static_cast<const uint16_t*>(from.data) + begin, from.format};
  alignas(64) uint16_t piece[kTile];
  if (!is_whole) {
    Pad(static_cast<const uint16_t*>(narrow.data), size, piece);
    narrow.data = piece;
  }
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    hn::Store(LoadFloats(d, narrow, i), d, tile->values + i);
  }
  return tile->values;
}

// Where the arithmetic writes a sink's elements: there, or in `tile`, for Settle.
HWY_INLINE float* PlaceFor(const Sink& to, size_t begin, size_t size, Tile* tile) {
  const bool there = to.data != nullptr && to.format == Format::kFloat32 && !to.streamed &&
                     size % kVectorElements == 0;
  return there ? static_cast<float*>(to.data) + begin : tile->values;
}

// Copies bytes to the sink's elements from `begin` on.
template <typename T>
HWY_INLINE void CopyOut(const T* from, const Sink& to, size_t begin, size_t size) {
  T* const there = static_cast<T*>(to.data) + begin;
  if (!to.streamed || size % kTile != 0) {
    std::memcpy(there, from, size * sizeof(T));
    return;
  }
  // No wider than what the elements are aligned to.
  const hn::CappedTag<T, kLineElements> d;
  for (size_t i = 0; i < kTile; i += hn::Lanes(d)) hn::Stream(hn::LoadU(d, from + i), d, there + i);
}

// Rounds to bf16. `rounding` says what is added to a value before its lower half is dropped.
template <class Rounding>
HWY_INLINE void StoreBfloat16s(const float* values, size_t size, uint16_t* out,
                               const Rounding& rounding) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    const auto value = hn::LoadU(d, values + i);
    StoreHalfWords(d, Bfloat16sOfFloats(d, value, rounding.AddTo(d, value, i)), out + i);
  }
}

struct RoundToNearestEven {
  template <class D>
  HWY_INLINE hn::Vec<Words<D>> AddTo(D d, hn::Vec<D> value, size_t) const {
    return ToNearestEven(d, value);
  }
};

struct RoundStochastically {
  const StochasticRounding& rounding;
  size_t begin;

  template <class D>
  HWY_INLINE hn::Vec<Words<D>> AddTo(D d, hn::Vec<D>, size_t i) const {
    return RandomBits(d, rounding, begin + i);
  }
};

// Writes what the arithmetic left in `values` to the sink, in the sink's format. Only bf16 is
// rounded stochastically; without `stochastic`, rounds to nearest, ties to even.
HWY_INLINE void Settle(const float* values, const Sink& to, size_t begin, size_t size,
                       const StochasticRounding* stochastic) {
  if (to.data == nullptr) return;
  if (to.format == Format::kFloat32) {
    if (static_cast<float*>(to.data) + begin != values) CopyOut(values, to, begin, size);
    return;
  }
  const hn::ScalableTag<float> d;
  alignas(64) uint16_t narrow[kTile];
  if (to.format == Format::kFloat16) {
    for (size_t i = 0; i < size; i += hn::Lanes(d)) {
      StoreHalfWords(d, HalvesOfFloats(d, hn::LoadU(d, values + i)), narrow + i);
    }
  } else if (stochastic == nullptr) {
    StoreBfloat16s(values, size, narrow, RoundToNearestEven());
  } else {
    StoreBfloat16s(values, size, narrow, RoundStochastically{*stochastic, begin});
  }
  CopyOut(narrow, to, begin, size);
}

// Calls visit(begin, size) for tiles that cover the range. All but the first and the last have
// kTile elements and begin on a line's boundary, where lines of the range have them at all.
template <class Visit>
HWY_INLINE void ForEachTile(const Range& range, size_t begin, size_t end, const Visit& visit) {
  const size_t past = (begin + range.phase) % kLineElements;
  if (range.streams && past != 0) {
    const size_t size = std::min(end - begin, kLineElements - past);
    visit.At(begin, size);
    begin += size;
  }
  for (; begin < end; begin += kTile) visit.At(begin, std::min(end - begin, kTile));
  if (range.streams) hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace memtide::optimizer
HWY_AFTER_NAMESPACE();

#endif  // MEMTIDE_DAEMON_OPTIMIZER_TILES_INL_H_

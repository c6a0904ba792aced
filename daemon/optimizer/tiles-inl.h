// The loop over a range, tile by tile, for one instruction set: Highway includes this once for
// each.
//
// A tile is a few hundred elements. What is not fp32 is widened into the first-level cache before
// the arithmetic, which so knows only fp32, and narrowed after it. What is written past the caches
// goes through there as well: whole lines of one span after the other, since several spans written
// by turns, in pieces of a line, are several times slower.
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
#include "daemon/optimizer/lanes-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace memtide::optimizer {
namespace HWY_NAMESPACE {

// Whole lines of every format, and whole vectors of every instruction set.
inline constexpr size_t kTile = 256;
inline constexpr size_t kVectorElements = std::max<size_t>(kLineElements, HWY_MAX_BYTES / 4);
static_assert(kTile % kVectorElements == 0);

struct alignas(64) Tile {
  float lanes[kTile];
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
      hn::Store(hn::Set(d, from.initial), d, tile->lanes + i);
    }
    return tile->lanes;
  }
  if (from.format == Format::kFloat32) {
    const float* const there = static_cast<const float*>(from.data) + begin;
    if (is_whole) return there;
    Pad(there, size, tile->lanes);
    return tile->lanes;
  }
  Source narrow = {static_cast<const uint16_t*>(from.data) + begin, from.format};
  alignas(64) uint16_t piece[kTile];
  if (!is_whole) {
    Pad(static_cast<const uint16_t*>(narrow.data), size, piece);
    narrow.data = piece;
  }
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    hn::Store(LoadFloats(d, narrow, i), d, tile->lanes + i);
  }
  return tile->lanes;
}

// Asks for the next tile of every source, span by span, a few lines for each vector of arithmetic:
// all at once, the reads would fill the processor's buffers and the arithmetic wait for them.
class Ahead {
 public:
  HWY_INLINE void Add(const Source& from, size_t begin, size_t end) {
    if (from.data == nullptr || begin >= end) return;
    const size_t width = from.format == Format::kFloat32 ? 4 : 2;
    const char* const there = static_cast<const char*>(from.data);
    spans_[count_++] = {there + begin * width, there + end * width};
  }
  // Before the next vector of the tile's elements.
  HWY_INLINE void Next() {
    // What a vector takes of four sources in fp32.
    const hn::ScalableTag<float> d;
    const size_t lines = std::max<size_t>(1, hn::Lanes(d) * 4 * sizeof(float) / 64);
    for (size_t line = 0; line < lines && at_ < count_; ++line) {
      Span& span = spans_[at_];
      hwy::Prefetch(span.next);
      span.next += 64;
      if (span.next >= span.end) ++at_;
    }
  }

 private:
  struct Span {
    const char *next, *end;
  };
  Span spans_[2 + StepCall::kStates];
  size_t count_ = 0, at_ = 0;
};

// Where the arithmetic writes a sink's elements: there, or in `tile`, for Settle.
HWY_INLINE float* PlaceFor(const Sink& to, size_t begin, size_t size, Tile* tile) {
  const bool there = to.data != nullptr && to.format == Format::kFloat32 && !to.streamed &&
                     size % kVectorElements == 0;
  return there ? static_cast<float*>(to.data) + begin : tile->lanes;
}

// Copies bytes to the sink's elements from `begin` on.
template <typename T>
HWY_INLINE void CopyOut(const T* from, const Sink& to, size_t begin, size_t size) {
  T* const there = static_cast<T*>(to.data) + begin;
  if (!to.streamed || size % kTile != 0) {
    std::memcpy(there, from, size * sizeof(T));
    return;
  }
  const hn::CappedTag<T, 64 / sizeof(T)> d;
  for (size_t i = 0; i < kTile; i += hn::Lanes(d)) hn::Stream(hn::LoadU(d, from + i), d, there + i);
}

// Brings what the arithmetic wrote to `values` where it belongs.
template <class AddOf>
HWY_INLINE void SettleBrains(const float* values, size_t size, uint16_t* out, const AddOf& add_of) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    const auto value = hn::LoadU(d, values + i);
    StoreHalfWords(d, BrainsOfFloats(d, value, add_of.At(d, value, i)), out + i);
  }
}

struct NearestEven {
  template <class D>
  HWY_INLINE hn::Vec<Words<D>> At(D d, hn::Vec<D> value, size_t) const {
    return ToNearestEven(d, value);
  }
};

struct ByChance {
  const Chance& chance;
  size_t begin;

  template <class D>
  HWY_INLINE hn::Vec<Words<D>> At(D d, hn::Vec<D>, size_t i) const {
    return RandomBits(d, chance, begin + i);
  }
};

HWY_INLINE void Settle(const float* values, const Sink& to, size_t begin, size_t size,
                       const Chance* chance) {
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
  } else if (chance == nullptr) {
    SettleBrains(values, size, narrow, NearestEven());
  } else {
    SettleBrains(values, size, narrow, ByChance{*chance, begin});
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

// Where a tile of a step is read and written: fp32 all of it.
struct Places {
  const float* gradient;
  const float* parameter;
  const float* old_state[StepCall::kStates];
  float* new_parameter;
  float* new_state[StepCall::kStates];
};

// The tiles of a step. Run::Tile(places, size, ahead) does the arithmetic, on whole vectors.
template <class Run>
struct StepTiles {
  const StepCall& call;
  const Run& run;
  size_t states;
  Chance chance;

  HWY_INLINE void At(size_t begin, size_t size) const {
    Tile gradient, parameter, new_parameter;
    Tile old_state[StepCall::kStates], new_state[StepCall::kStates];
    const size_t next = begin + size, past = std::min(next + kTile, call.range.size);
    Ahead ahead;
    ahead.Add(call.gradient, next, past);
    ahead.Add(call.parameter, next, past);
    for (size_t s = 0; s < states; ++s) ahead.Add(call.old_state[s], next, past);
    Places places = {};
    places.gradient = Widen(call.gradient, begin, size, &gradient);
    places.parameter = Widen(call.parameter, begin, size, &parameter);
    places.new_parameter = PlaceFor(call.new_parameter, begin, size, &new_parameter);
    for (size_t s = 0; s < states; ++s) {
      places.old_state[s] = Widen(call.old_state[s], begin, size, &old_state[s]);
      places.new_state[s] = PlaceFor(call.new_state[s], begin, size, &new_state[s]);
    }
    run.Tile(places, size, &ahead);
    const Chance* const by_chance = call.stochastic ? &chance : nullptr;
    Settle(places.new_parameter, call.new_parameter, begin, size, by_chance);
    Settle(places.new_parameter, call.copy, begin, size, nullptr);
    for (size_t s = 0; s < states; ++s) {
      Settle(places.new_state[s], call.new_state[s], begin, size, nullptr);
    }
  }
};

// All tiles of a step of an algorithm with so many states.
template <class Run>
HWY_INLINE void ForEachTileOfStep(const StepCall& call, size_t states, const Run& run) {
  StepTiles<Run> tiles = {call, run, states, {}};
  size_t begin = 0;
  while (begin < call.range.size) {
    size_t end = call.range.size;
    if (call.stochastic) {
      // The keys change where the index's high half does.
      const uint64_t index = call.first_element + begin;
      tiles.chance.keys = KeysFor(call.seed, call.step, index >> 32);
      tiles.chance.first = static_cast<uint32_t>(call.first_element);
      const uint64_t left = (uint64_t{1} << 32) - static_cast<uint32_t>(index);
      end = begin + std::min<uint64_t>(left, end - begin);
    }
    ForEachTile(call.range, begin, end, tiles);
    begin = end;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace memtide::optimizer
HWY_AFTER_NAMESPACE();

#endif  // MEMTIDE_DAEMON_OPTIMIZER_TILES_INL_H_

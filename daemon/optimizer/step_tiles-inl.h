// The tiles of a step, for one instruction set: Highway includes this once for each.
//
// An algorithm gives Run::Vector(d, places, i, put): the arithmetic of one vector, whose values it
// hands to `put`, which says what becomes of them. Where all of them go past the caches in fp32, a
// tile is gone over once for each array that is written: the array's values go straight to memory,
// a burst of whole lines, and what the pass does not write is not computed. The arithmetic that is
// done twice for that is little, as the roots and divisions are the parameter's alone.
// bench/README.md has the figures.
#if defined(MEMTIDE_DAEMON_OPTIMIZER_STEP_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEMTIDE_DAEMON_OPTIMIZER_STEP_TILES_INL_H_
#undef MEMTIDE_DAEMON_OPTIMIZER_STEP_TILES_INL_H_
#else
#define MEMTIDE_DAEMON_OPTIMIZER_STEP_TILES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "daemon/optimizer/kernel.h"
#include "daemon/optimizer/tiles-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace memtide::optimizer {
namespace HWY_NAMESPACE {

// Prefetches elements [begin, end) of a source into the caches.
HWY_INLINE void Prefetch(const Source& from, size_t begin, size_t end) {
  if (from.data == nullptr || begin >= end) return;
  const size_t width = from.format == Format::kFloat32 ? 4 : 2;
  const char* const there = static_cast<const char*>(from.data);
  for (size_t i = begin * width; i < end * width; i += 64) hwy::Prefetch(there + i);
}

// Where a tile of a step is read and written: fp32 all of it.
struct Places {
  const float* gradient;
  const float* parameter;
  const float* old_state[StepCall::kStates];
  float* new_parameter;
  float* new_state[StepCall::kStates];
};

// Stores all values where `places` says.
struct StoreAll {
  const Places& places;

  template <class D>
  HWY_INLINE void State(D d, size_t state, hn::Vec<D> value, size_t i) const {
    hn::StoreU(value, d, places.new_state[state] + i);
  }
  template <class D>
  HWY_INLINE void Parameter(D d, hn::Vec<D> value, size_t i) const {
    hn::StoreU(value, d, places.new_parameter + i);
  }
};

// Streams one state, and drops the rest.
template <size_t kState>
struct StreamState {
  float* to;

  template <class D>
  HWY_INLINE void State(D d, size_t state, hn::Vec<D> value, size_t i) const {
    if (state == kState) hn::Stream(value, d, to + i);
  }
  template <class D>
  HWY_INLINE void Parameter(D, hn::Vec<D>, size_t) const {}
};

// Streams the parameter, and drops the rest. Keeps it for the copy, if there is one.
struct StreamParameter {
  float* to;
  float* retained;

  template <class D>
  HWY_INLINE void State(D, size_t, hn::Vec<D>, size_t) const {}
  template <class D>
  HWY_INLINE void Parameter(D d, hn::Vec<D> value, size_t i) const {
    hn::Stream(value, d, to + i);
    if (retained != nullptr) hn::Store(value, d, retained + i);
  }
};

HWY_INLINE bool IsPlainStream(const Sink& to) {
  return to.streamed && to.format == Format::kFloat32;
}

template <class Run>
struct StepTiles {
  const StepCall& call;
  const Run& run;
  size_t states;
  bool in_passes;  // All of parameter and states are streamed in fp32.
  StochasticRounding rounding;

  HWY_INLINE void At(size_t begin, size_t size) const {
    Tile gradient, parameter, old_state[StepCall::kStates];
    const size_t next = begin + size, past = std::min(next + kTile, call.range.size);
    Prefetch(call.gradient, next, past);
    Prefetch(call.parameter, next, past);
    for (size_t s = 0; s < states; ++s) Prefetch(call.old_state[s], next, past);
    Places places = {};
    places.gradient = Widen(call.gradient, begin, size, &gradient);
    places.parameter = Widen(call.parameter, begin, size, &parameter);
    for (size_t s = 0; s < states; ++s) {
      places.old_state[s] = Widen(call.old_state[s], begin, size, &old_state[s]);
    }
    if (in_passes && size == kTile) {
      Stream(places, begin);
    } else {
      Store(&places, begin, size);
    }
  }

 private:
  HWY_INLINE void Stream(const Places& places, size_t begin) const {
    if (states > 0) PassOfState<0>(places, begin);
    if (states > 1) PassOfState<1>(places, begin);
    if (states > 2) PassOfState<2>(places, begin);
    Tile retained;
    float* const to = static_cast<float*>(call.new_parameter.data) + begin;
    const StreamParameter put = {to, call.copy.data == nullptr ? nullptr : retained.values};
    const hn::ScalableTag<float> d;
    for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
      run.Vector(d, places, i, put);
    }
    Settle(retained.values, call.copy, begin, kTile, nullptr);
  }

  template <size_t kState>
  HWY_INLINE void PassOfState(const Places& places, size_t begin) const {
    const StreamState<kState> put = {static_cast<float*>(call.new_state[kState].data) + begin};
    const hn::ScalableTag<float> d;
    for (size_t i = 0; i < kTile; i += hn::Lanes(d)) run.Vector(d, places, i, put);
  }

  HWY_INLINE void Store(Places* places, size_t begin, size_t size) const {
    Tile new_parameter, new_state[StepCall::kStates];
    places->new_parameter = PlaceFor(call.new_parameter, begin, size, &new_parameter);
    for (size_t s = 0; s < states; ++s) {
      places->new_state[s] = PlaceFor(call.new_state[s], begin, size, &new_state[s]);
    }
    const StoreAll put = {*places};
    const hn::ScalableTag<float> d;
    for (size_t i = 0; i < size; i += hn::Lanes(d)) {
      run.Vector(d, *places, i, put);
    }
    const StochasticRounding* const stochastic = call.stochastic ? &rounding : nullptr;
    Settle(places->new_parameter, call.new_parameter, begin, size, stochastic);
    Settle(places->new_parameter, call.copy, begin, size, nullptr);
    for (size_t s = 0; s < states; ++s) {
      Settle(places->new_state[s], call.new_state[s], begin, size, nullptr);
    }
  }
};

// Calls `run` for all tiles of a step of an algorithm with `states` states.
template <class Run>
HWY_INLINE void ForEachTileOfStep(const StepCall& call, size_t states, const Run& run) {
  bool in_passes = IsPlainStream(call.new_parameter);
  for (size_t s = 0; s < states; ++s) in_passes &= IsPlainStream(call.new_state[s]);
  StepTiles<Run> tiles = {call, run, states, in_passes, {}};
  size_t begin = 0;
  while (begin < call.range.size) {
    size_t end = call.range.size;
    if (call.stochastic) {
      // The keys change where the index's high half does.
      const uint64_t index = call.first_element + begin;
      tiles.rounding.keys = KeysFor(call.seed, call.step, index >> 32);
      tiles.rounding.first = static_cast<uint32_t>(call.first_element);
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

#endif  // MEMTIDE_DAEMON_OPTIMIZER_STEP_TILES_INL_H_

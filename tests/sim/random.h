// Random: the simulation's only source of random numbers. SplitMix64: the same seed gives the same
// numbers on every machine and library. A value type; thread-compatible.
#ifndef MEMTIDE_TESTS_SIM_RANDOM_H_
#define MEMTIDE_TESTS_SIM_RANDOM_H_

#include <cstdint>

namespace memtide::sim {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [0, bound). REQUIRES: bound is not zero.
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(Next() % bound); }
  // In [low, high].
  uint32_t Between(uint32_t low, uint32_t high) { return low + Below(high - low + 1); }
  bool Percent(uint32_t percent) { return Below(100) < percent; }

 private:
  uint64_t state_;
};

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_RANDOM_H_

// Memory for tests of kernels: spans in any format, at any offset, with guards on both sides.
//
// A Numbers owns its memory. Targets() and Use() choose among the instruction sets of this CPU; not
// thread-safe: the choice is the process's.
#ifndef MEMTIDE_DAEMON_OPTIMIZER_TESTING_TEST_SPANS_H_
#define MEMTIDE_DAEMON_OPTIMIZER_TESTING_TEST_SPANS_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "daemon/optimizer/spans.h"
#include "daemon/optimizer/testing/reference.h"

namespace memtide::optimizer {

// Every instruction set that is compiled in and that this CPU has, by Highway's number and name.
struct Target {
  int64_t bit = 0;
  std::string name;
};
std::vector<Target> Targets();
// Makes kernels use it from now on.
void Use(const Target& target);

class Numbers {
 public:
  // Holds `values`, each rounded; the first lies `offset` elements after a multiple of 64 bytes.
  Numbers(Format format, const std::vector<double>& values, size_t offset = 0)
      : format_(format), size_(values.size()), width_(BytesPerElement(format)) {
    memory_.assign(size_ * width_ + 2 * kGuard + 64, kFill);
    const auto begin = reinterpret_cast<uintptr_t>(memory_.data());
    first_ = kGuard + (64 - begin % 64) % 64 + offset * width_;
    MEMTIDE_CHECK(offset * width_ < 64);
    for (size_t i = 0; i < size_; ++i) Set(i, values[i]);
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  size_t size() const { return size_; }
  Input input() const { return Input(At(0), size_, format_); }
  Output output() { return Output(memory_.data() + first_, size_, format_); }
  // Elements [begin, end).
  Input input(size_t begin, size_t end) const { return Input(At(begin), end - begin, format_); }
  Output output(size_t begin, size_t end) {
    return Output(memory_.data() + first_ + begin * width_, end - begin, format_);
  }

  uint32_t bits(size_t i) const {
    uint32_t bits = 0;
    std::memcpy(&bits, At(i), width_);
    return bits;
  }
  double value(size_t i) const { return ValueOf(format_, bits(i)); }
  std::vector<double> values() const {
    std::vector<double> values;
    for (size_t i = 0; i < size_; ++i) values.push_back(value(i));
    return values;
  }
  std::vector<uint32_t> all_bits() const {
    std::vector<uint32_t> all;
    for (size_t i = 0; i < size_; ++i) all.push_back(bits(i));
    return all;
  }
  void SetBits(size_t i, uint32_t bits) { std::memcpy(At(i), &bits, width_); }

  // Whether nothing beside the span was written.
  bool GuardsAreWhole() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      const bool inside = i >= first_ && i < first_ + size_ * width_;
      if (!inside && memory_[i] != kFill) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 128;
  static constexpr char kFill = 0x5a;

  char* At(size_t i) { return memory_.data() + first_ + i * width_; }
  const char* At(size_t i) const { return memory_.data() + first_ + i * width_; }
  void Set(size_t i, double value);

  const Format format_;
  const size_t size_, width_;
  std::vector<char> memory_;
  size_t first_ = 0;
};

}  // namespace memtide::optimizer

#endif  // MEMTIDE_DAEMON_OPTIMIZER_TESTING_TEST_SPANS_H_

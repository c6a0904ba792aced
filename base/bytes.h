// Bytes: an amount of memory, as a type of its own.
//
// Sizes from outside can overflow (2^63 chunks of 64 MiB), so untrusted values go through
// CheckedMultiply and CheckedAdd, which return nullopt instead of wrapping. The plain operators
// CHECK-fail on overflow; they are for values that this program computed. A value type of 8 bytes;
// thread-compatible.
#ifndef MEMTIDE_BASE_BYTES_H_
#define MEMTIDE_BASE_BYTES_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace memtide {

class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(uint64_t count) : count_(count) {}

  constexpr uint64_t count() const { return count_; }
  constexpr bool IsZero() const { return count_ == 0; }
  // REQUIRES: alignment is not zero.
  constexpr bool IsMultipleOf(Bytes alignment) const { return count_ % alignment.count_ == 0; }

  friend constexpr bool operator==(Bytes a, Bytes b) { return a.count_ == b.count_; }
  friend constexpr bool operator!=(Bytes a, Bytes b) { return a.count_ != b.count_; }
  friend constexpr bool operator<(Bytes a, Bytes b) { return a.count_ < b.count_; }
  friend constexpr bool operator<=(Bytes a, Bytes b) { return a.count_ <= b.count_; }
  friend constexpr bool operator>(Bytes a, Bytes b) { return a.count_ > b.count_; }
  friend constexpr bool operator>=(Bytes a, Bytes b) { return a.count_ >= b.count_; }

  // CHECK-fail on overflow and underflow.
  friend Bytes operator+(Bytes a, Bytes b);
  friend Bytes operator-(Bytes a, Bytes b);
  friend Bytes operator*(Bytes a, uint64_t times);
  // The number of whole b that fit into a. REQUIRES: b is not zero.
  friend constexpr uint64_t operator/(Bytes a, Bytes b) { return a.count_ / b.count_; }
  Bytes& operator+=(Bytes other) { return *this = *this + other; }
  Bytes& operator-=(Bytes other) { return *this = *this - other; }

  friend std::ostream& operator<<(std::ostream& out, Bytes bytes);

 private:
  uint64_t count_ = 0;
};

constexpr Bytes KiB(uint64_t n) { return Bytes(n << 10); }
constexpr Bytes MiB(uint64_t n) { return Bytes(n << 20); }
constexpr Bytes GiB(uint64_t n) { return Bytes(n << 30); }

absl::optional<Bytes> CheckedAdd(Bytes a, Bytes b);
absl::optional<Bytes> CheckedMultiply(Bytes a, uint64_t times);
// Rounds down to a multiple of `alignment`. REQUIRES: alignment is not zero.
Bytes RoundDown(Bytes bytes, Bytes alignment);

// Formats for people: "96 MiB", "1.5 GiB", "17 B". At most one decimal.
std::string FormatBytes(Bytes bytes);
// Parses "96MiB", "1.5 GiB", "4096" and "64MB" (10^6 bytes). INVALID_ARGUMENT: none of these forms;
// the message names the text and the forms.
absl::StatusOr<Bytes> ParseBytes(absl::string_view text);

}  // namespace memtide

#endif  // MEMTIDE_BASE_BYTES_H_

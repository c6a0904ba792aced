#include "base/bytes.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"

namespace memtide {

namespace {

struct Unit {
  absl::string_view name;
  uint64_t bytes;
};

constexpr Unit kUnits[] = {
    {"", 1},
    {"b", 1},
    {"kib", 1 << 10},
    {"mib", 1 << 20},
    {"gib", 1 << 30},
    {"tib", uint64_t{1} << 40},
    {"kb", 1000},
    {"mb", 1000 * 1000},
    {"gb", 1000000000},
    {"tb", uint64_t{1000000000} * 1000},
};

}  // namespace

absl::optional<Bytes> CheckedAdd(Bytes a, Bytes b) {
  uint64_t sum;
  if (__builtin_add_overflow(a.count(), b.count(), &sum)) return absl::nullopt;
  return Bytes(sum);
}

absl::optional<Bytes> CheckedMultiply(Bytes a, uint64_t times) {
  uint64_t product;
  if (__builtin_mul_overflow(a.count(), times, &product)) return absl::nullopt;
  return Bytes(product);
}

// The operators are for sizes that were checked before: an overflow is an error of this program.
// For sizes that a client sends there are the Checked functions.
Bytes operator+(Bytes a, Bytes b) {
  absl::optional<Bytes> sum = CheckedAdd(a, b);
  MEMTIDE_CHECK(sum.has_value()) << a << " + " << b << " overflows";
  return *sum;
}

Bytes operator-(Bytes a, Bytes b) {
  MEMTIDE_CHECK(a >= b) << a << " - " << b << " is negative";
  return Bytes(a.count() - b.count());
}

Bytes operator*(Bytes a, uint64_t times) {
  absl::optional<Bytes> product = CheckedMultiply(a, times);
  MEMTIDE_CHECK(product.has_value()) << a << " * " << times << " overflows";
  return *product;
}

Bytes RoundDown(Bytes bytes, Bytes alignment) {
  return Bytes(bytes.count() - bytes.count() % alignment.count());
}

std::ostream& operator<<(std::ostream& out, Bytes bytes) { return out << FormatBytes(bytes); }

std::string FormatBytes(Bytes bytes) {
  constexpr absl::string_view kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes.count());
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kNames)) {
    value /= 1024;
    ++unit;
  }
  const bool whole = value == std::floor(value);
  return whole ? absl::StrFormat("%.0f %s", value, kNames[unit])
               : absl::StrFormat("%.1f %s", value, kNames[unit]);
}

// Whole numbers are parsed as integers, because a double is exact only up to 2^53.
absl::StatusOr<Bytes> ParseBytes(absl::string_view text) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("\"", text,
                   "\" is not a size; write a number of bytes or a number and KiB, MiB, GiB or TiB,"
                   " for example 96MiB"));
  size_t digits = 0;
  while (digits < trimmed.size() &&
         (absl::ascii_isdigit(trimmed[digits]) || trimmed[digits] == '.'))
    ++digits;
  const std::string unit_name =
      absl::AsciiStrToLower(absl::StripAsciiWhitespace(trimmed.substr(digits)));
  const absl::string_view number = trimmed.substr(0, digits);
  for (const Unit& unit : kUnits) {
    if (unit.name != unit_name) continue;
    uint64_t whole;
    if (absl::SimpleAtoi(number, &whole)) {
      absl::optional<Bytes> bytes = CheckedMultiply(Bytes(unit.bytes), whole);
      return bytes.has_value() ? absl::StatusOr<Bytes>(*bytes) : bad;
    }
    double fraction;
    if (!absl::SimpleAtod(number, &fraction)) return bad;
    const double bytes = fraction * static_cast<double>(unit.bytes);
    // Below 2^63, so that the conversion to an integer is defined. NaN fails too.
    if (!(bytes >= 0 && bytes < 9e18)) return bad;
    return Bytes(static_cast<uint64_t>(bytes));
  }
  return bad;
}

}  // namespace memtide

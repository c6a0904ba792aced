#include "daemon/optimizer/testing/test_spans.h"

#include <cmath>

#include "hwy/highway.h"
#include "hwy/targets.h"

namespace memtide::optimizer {
namespace {

// The bits of a number that the format holds exactly, or of the nearest.
uint32_t BitsOf(Format format, double value) {
  const double rounded = RoundTo(format, value);
  if (format != Format::kFloat16) {
    const auto narrow = static_cast<float>(rounded);
    uint32_t bits;
    std::memcpy(&bits, &narrow, sizeof(bits));
    return format == Format::kBfloat16 ? bits >> 16 : bits;
  }
  const uint32_t sign = std::signbit(rounded) ? 0x8000 : 0;
  const double magnitude = std::abs(rounded);
  if (std::isnan(rounded)) return 0x7e00;
  if (std::isinf(rounded)) return sign | 0x7c00;
  if (magnitude < std::ldexp(1, -14)) {
    return sign | static_cast<uint32_t>(std::ldexp(magnitude, 24));
  }
  const int exponent = std::ilogb(magnitude);
  const auto fraction = static_cast<uint32_t>(std::ldexp(magnitude, 10 - exponent)) - 1024;
  return sign | static_cast<uint32_t>(exponent + 15) << 10 | fraction;
}

}  // namespace

void Numbers::Set(size_t i, double value) { SetBits(i, BitsOf(format_, value)); }

std::vector<Target> Targets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<Target> targets;
  for (const int64_t bit : hwy::SupportedAndGeneratedTargets()) {
    targets.push_back({bit, hwy::TargetName(bit)});
  }
  return targets;
}

void Use(const Target& target) {
  hwy::SetSupportedTargetsForTest(target.bit);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace memtide::optimizer

#include "tests/sim/golden_hashes.h"

#include <cstdlib>
#include <fstream>

#include "gtest/gtest.h"
#include "tests/sim/families.h"

namespace memtide::sim {

namespace {

// Clang evaluates arguments in another order than GCC, so that a seed draws another configuration.
#ifdef __clang__
constexpr bool kAreComparable = false;
#else
constexpr bool kAreComparable = true;
#endif

}  // namespace

GoldenHashes::GoldenHashes(const std::string& family, uint64_t seeds)
    : family_(family), seeds_(seeds) {
  std::ifstream file("tests/sim/golden_hashes.txt");
  std::string name, hash;
  uint64_t first = 0;
  while (file >> name >> first >> hash) {
    if (name == family) rows_[first] = std::strtoull(hash.c_str(), nullptr, 16);
  }
  EXPECT_EQ(rows_.size(), seeds / kSeedsOfRow) << family;
}

GoldenHashes::~GoldenHashes() {
  if (!kAreComparable) return;
  EXPECT_EQ(different_, 0u)
      << "seeds of " << family_ << " behave otherwise than golden_hashes.txt says, the first are "
      << first_different_ << " to " << first_different_ + kSeedsOfRow - 1
      << ". A commit that only moves or renames must not do that. One that means to change "
         "behaviour says so in its message and replaces the file:\n"
         "  bazel run -c opt //tests/sim:golden > tests/sim/golden_hashes.txt";
}

void GoldenHashes::Add(uint64_t seed, uint64_t trace_hash) {
  if (seed % kSeedsOfRow == 1) {
    hash_ = 0;
  } else if (seed != next_) {
    return;
  }
  hash_ = WithTrace(hash_, trace_hash);
  next_ = seed + 1;
  if (seed % kSeedsOfRow != 0) return;
  const uint64_t first = next_ - kSeedsOfRow;
  const auto row = rows_.find(first);
  if (row != rows_.end() && row->second != hash_ && ++different_ == 1) first_different_ = first;
}

}  // namespace memtide::sim

#include "base/digest.h"

#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using testing::ElementsAre;

TEST(DigestTest, HasTheHighestByteFirst) {
  const Digest digest{0x0001020304050607, 0x08090a0b0c0d0e0f};
  EXPECT_THAT(digest.ToBytes(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_EQ(Digest::FromBytes(digest.ToBytes()), digest);
}

TEST(DigestTest, IsPrintedWithAllDigitsAndLeavesTheStreamAsItWas) {
  std::ostringstream out;
  out << Digest{1, 0xab} << 10;
  EXPECT_EQ(out.str(), "000000000000000100000000000000ab10");
}

TEST(DigestTest, IsOrderedAsItsBytes) {
  const std::vector<Digest> ordered = {{0, 0}, {0, ~0ull}, {1, 0}, {1, 1}, {~0ull, 0}};
  for (size_t i = 0; i < ordered.size(); ++i) {
    for (size_t j = 0; j < ordered.size(); ++j) {
      EXPECT_EQ(ordered[i] < ordered[j], i < j);
      EXPECT_EQ(ordered[i] == ordered[j], i == j);
      EXPECT_EQ(ordered[i] != ordered[j], i != j);
      EXPECT_EQ(ordered[i] < ordered[j], ordered[i].ToBytes() < ordered[j].ToBytes());
    }
  }
}

TEST(DigestTest, IsNotSetIfItIsZero) {
  EXPECT_FALSE(Digest().is_set());
  EXPECT_TRUE((Digest{0, 1}.is_set() && Digest{1, 0}.is_set()));
}

}  // namespace
}  // namespace memtide

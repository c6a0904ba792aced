#include "daemon/engine/tables/manifest.h"

#include <gtest/gtest.h>

namespace memtide {
namespace {

TEST(ManifestTest, CountsForItsUserAsLongAsItExists) {
  ManifestBytes bytes;
  Manifest longer_lived(&bytes, 1, "four");
  {
    const Manifest other(&bytes, 1, "six...");
    const Manifest another_users(&bytes, 2, "x");
    EXPECT_EQ(bytes.Of(1), Bytes(10));
    EXPECT_EQ(bytes.Of(2), Bytes(1));
    EXPECT_EQ(bytes.all(), Bytes(11));
  }
  EXPECT_EQ(bytes.Of(1), Bytes(4));
  EXPECT_EQ(bytes.Of(2), Bytes(0));
  EXPECT_EQ(longer_lived.text(), "four");
}

TEST(ManifestTest, CountsOnceHoweverItMoves) {
  ManifestBytes bytes;
  Manifest first(&bytes, 1, "four");
  Manifest second = std::move(first);
  EXPECT_EQ(bytes.all(), Bytes(4));
  second = Manifest(&bytes, 1, "six...");
  EXPECT_EQ(bytes.all(), Bytes(6)) << "the one before is gone";
  second = Manifest();
  EXPECT_EQ(bytes.all(), Bytes(0));
  EXPECT_EQ(second.text(), "");
}

}  // namespace
}  // namespace memtide

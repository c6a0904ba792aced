#include "daemon/io/stripes.h"

#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

// Every page of a store, in order, against a model that deals stripes out like cards.
TEST(StripesTest, EveryPageHasAPlaceOfItsOwnAndFilesAreJustLongEnough) {
  for (size_t directories = 1; directories <= 5; ++directories) {
    const Stripes stripes(directories);
    const Bytes size = kStripeSize * 11 + MiB(3);
    std::vector<Bytes> written(directories);
    for (Bytes offset; offset < size; offset += MiB(1)) {
      const size_t directory = (offset / kStripeSize) % directories;
      EXPECT_EQ(stripes.DirectoryOf(offset), directory);
      EXPECT_EQ(stripes.FileOffset(offset), written[directory]);
      written[directory] += MiB(1);
    }
    for (size_t directory = 0; directory < directories; ++directory) {
      EXPECT_EQ(stripes.FileSize(directory, size), written[directory]) << directory;
    }
  }
}

TEST(StripesTest, FindsTheFirstByteInADirectory) {
  const Stripes stripes(3);
  EXPECT_EQ(stripes.FirstIn(0, MiB(1)), MiB(1));
  EXPECT_EQ(stripes.FirstIn(1, MiB(1)), MiB(8));
  EXPECT_EQ(stripes.FirstIn(2, MiB(9)), MiB(16));
  EXPECT_EQ(stripes.FirstIn(0, MiB(9)), MiB(24));
  EXPECT_EQ(stripes.EndOfStripe(MiB(9)), MiB(16));
  EXPECT_EQ(stripes.EndOfStripe(MiB(8)), MiB(16));
}

}  // namespace
}  // namespace memtide

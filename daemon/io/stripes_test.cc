#include "daemon/io/stripes.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

StripeCounts RandomCounts(std::minstd_rand* random) {
  StripeCounts counts(1 + (*random)() % 7);
  for (uint32_t& count : counts) count = (*random)() % 17;
  counts[(*random)() % counts.size()] += 1;
  return counts;
}

// Every half stripe of a store, in order: one more place of its file is taken, and no place twice.
TEST(StripesTest, EveryByteHasAPlaceOfItsOwnAndFilesAreJustLongEnough) {
  std::minstd_rand random(34);
  for (int i = 0; i < 200; ++i) {
    const StripeCounts counts = RandomCounts(&random);
    const Stripes stripes(counts);
    const Bytes size = MiB(4) * (1 + random() % 600) + KiB(4) * (random() % 3);
    std::vector<Bytes> written(counts.size());
    for (Bytes offset; offset < size; offset += MiB(4)) {
      const size_t directory = stripes.DirectoryOf(offset);
      ASSERT_EQ(stripes.FileOffset(offset), written[directory]) << offset;
      ASSERT_EQ(stripes.FileOffset(offset + KiB(4)), written[directory] + KiB(4));
      ASSERT_EQ(stripes.DirectoryOf(offset + MiB(4) - Bytes(1)), directory);
      written[directory] += std::min(MiB(4), size - offset);
    }
    for (size_t directory = 0; directory < counts.size(); ++directory) {
      ASSERT_EQ(stripes.FileSize(directory, size), written[directory]) << directory;
      ASSERT_EQ(written[directory].IsZero() || counts[directory] > 0, true);
    }
  }
}

TEST(StripesTest, AnyPartOfAStoreIsSpreadAsTheWholeCycle) {
  std::minstd_rand random(35);
  for (int i = 0; i < 200; ++i) {
    const StripeCounts counts = RandomCounts(&random);
    const Stripes stripes(counts);
    const double cycle = std::accumulate(counts.begin(), counts.end(), 0.0);
    const uint64_t begin = random() % 300, end = begin + 1 + random() % 300;
    std::vector<int> dealt(counts.size());
    for (uint64_t stripe = begin; stripe < end; ++stripe) {
      ++dealt[stripes.DirectoryOf(kStripeSize * stripe)];
    }
    for (size_t directory = 0; directory < counts.size(); ++directory) {
      const double fair = (end - begin) * counts[directory] / cycle;
      ASSERT_NEAR(dealt[directory], fair, 2.5) << end - begin << " stripes of " << cycle;
    }
  }
}

TEST(StripesTest, EqualDirectoriesAreServedInTurn) {
  for (size_t directories = 1; directories <= 5; ++directories) {
    const Stripes stripes(Stripes::Equal(directories));
    for (uint64_t stripe = 0; stripe < 20; ++stripe) {
      EXPECT_EQ(stripes.DirectoryOf(kStripeSize * stripe), stripe % directories);
      EXPECT_EQ(stripes.FileOffset(kStripeSize * stripe), kStripeSize * (stripe / directories));
    }
  }
}

TEST(StripesTest, FindsTheFirstByteInADirectory) {
  std::minstd_rand random(36);
  for (int i = 0; i < 500; ++i) {
    const StripeCounts counts = RandomCounts(&random);
    const Stripes stripes(counts);
    const Bytes offset = MiB(1) * (random() % 4000);
    for (size_t directory = 0; directory < counts.size(); ++directory) {
      if (counts[directory] == 0) continue;
      Bytes first = offset;
      while (stripes.DirectoryOf(first) != directory) first = stripes.EndOfStripe(first);
      ASSERT_EQ(stripes.FirstIn(directory, offset), first) << offset << " in " << directory;
    }
  }
}

TEST(StripesTest, AStripeEndsWhereTheNextBegins) {
  const Stripes stripes({2, 1});
  EXPECT_EQ(stripes.EndOfStripe(MiB(9)), MiB(16));
  EXPECT_EQ(stripes.EndOfStripe(MiB(8)), MiB(16));
}

TEST(StripesTest, CountsThatAreNoCycleAreNotValid) {
  EXPECT_TRUE(Stripes::Valid({1}));
  EXPECT_TRUE(Stripes::Valid({0, 256}));
  EXPECT_FALSE(Stripes::Valid({}));
  EXPECT_FALSE(Stripes::Valid({0, 0}));
  EXPECT_FALSE(Stripes::Valid({1, 256}));
  EXPECT_FALSE(Stripes::Valid({0x80000000, 0x80000000, 1}));
}

}  // namespace
}  // namespace memtide

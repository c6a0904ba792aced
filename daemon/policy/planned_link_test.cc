#include "daemon/policy/planned_link.h"

#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

// Eight points of 100 us each.
PlannedLink Made(uint64_t transfer_micros) {
  return PlannedLink({0, 100, 200, 300, 400, 500, 600, 700, 800}, transfer_micros);
}

void ExpectSpan(PointSpan span, uint32_t begin, uint32_t end) {
  EXPECT_EQ(span.begin, begin);
  EXPECT_EQ(span.end, end);
}

TEST(PlannedLinkTest, ATransferTakesTheWholePointsThatItFits) {
  const PlannedLink link = Made(250);
  ExpectSpan(link.Before(8), 6, 8);
  ExpectSpan(link.Before(9), 7, 9);
  ExpectSpan(link.Before(1), 0, 1);
  ExpectSpan(link.After(0), 0, 2);
  ExpectSpan(link.After(7), 7, 9);
  EXPECT_DOUBLE_EQ(link.Missing({0, 1}), 0.6);
  EXPECT_DOUBLE_EQ(link.Missing({0, 3}), 0);
}

TEST(PlannedLinkTest, OnlyThePartThatFindsTheLinkTakenHasAPrice) {
  PlannedLink link = Made(200);
  link.SumPrices();
  EXPECT_DOUBLE_EQ(link.Price({4, 6}), 0);
  link.Take({6, 8}, 1);
  link.SumPrices();
  EXPECT_DOUBLE_EQ(link.Price({4, 6}), 0);
  EXPECT_DOUBLE_EQ(link.Price({5, 7}), 0.5);
  EXPECT_DOUBLE_EQ(link.Price({6, 8}), 1);
  EXPECT_DOUBLE_EQ(link.Price({7, 9}), 0.5) << "the iteration is a circle";
  link.Take({6, 8}, -1);
  link.SumPrices();
  EXPECT_DOUBLE_EQ(link.Price({6, 8}), 0);
}

TEST(PlannedLinkTest, SeveralShortTransfersFitOnePoint) {
  PlannedLink link = Made(40);
  const PointSpan span = link.Before(3);
  ExpectSpan(span, 3, 3);
  for (const double price : {0.0, 0.0, 0.5, 1.0}) {
    link.SumPrices();
    EXPECT_DOUBLE_EQ(link.Price(span), price);
    link.Take(span, 1);
  }
  EXPECT_DOUBLE_EQ(link.Price({2, 3}), 1) << "an empty span stands for the point before it";
  EXPECT_DOUBLE_EQ(link.Price({3, 4}), 0);
}

TEST(PlannedLinkTest, WhereTransfersTakeLongerThanComputingAllOfItTakesLonger) {
  PlannedLink link = Made(400);
  EXPECT_DOUBLE_EQ(link.PaceOfTransfers(), 0);
  for (uint32_t end = 4; end <= 8; ++end) link.Take({end - 4, end}, 1);
  EXPECT_DOUBLE_EQ(link.PaceOfTransfers(), 2.5);
  link.SetPace(2);
  ExpectSpan(link.Before(8), 6, 8);
  ExpectSpan(link.After(0), 0, 2);
}

TEST(PlannedLinkTest, ATransferLongerThanTheIterationTakesAllOfIt) {
  const PlannedLink link = Made(1000);
  ExpectSpan(link.Before(16), 8, 16);
  EXPECT_DOUBLE_EQ(link.Missing({0, 8}), 0.2);
}

TEST(PlannedLinkTest, AnUnknownLinkHasNoPrice) {
  for (PlannedLink link : {Made(0), PlannedLink({0, 0, 0}, 100)}) {
    EXPECT_FALSE(link.known());
    link.Take({0, 1}, 1);
    link.SumPrices();
    EXPECT_EQ(link.Price({0, 1}), 0);
    EXPECT_EQ(link.Missing({0, 1}), 0);
    EXPECT_EQ(link.PaceOfTransfers(), 0);
    ExpectSpan(link.Before(1), 1, 1);
    ExpectSpan(link.After(1), 1, 1);
  }
}

}  // namespace
}  // namespace memtide

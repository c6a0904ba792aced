#include "daemon/policy/link_clocks.h"

#include "gtest/gtest.h"

namespace memtide {
namespace {

using std::chrono::microseconds;

constexpr Link kUp{Tier::kSsd, Tier::kHost};

Instant At(int64_t micros) { return Instant(microseconds(1000000 + micros)); }

TEST(LinkClocksTest, EachLinkCountsItsOwnTransfers) {
  LinkClocks links;
  uint32_t count = 0;
  for (const Link link : kLinks) {
    for (uint32_t i = 0; i <= count; ++i) links.Start(link);
    ++count;
  }
  count = 0;
  for (const Link link : kLinks) {
    EXPECT_EQ(links.in_flight(link), ++count);
    links.End(link);
    EXPECT_EQ(links.in_flight(link), count - 1);
  }
}

TEST(LinkClocksTest, ATransferThatWaitsForTheLinkDoesNotOccupyItMeanwhile) {
  LinkClocks links;
  EXPECT_EQ(links.micros(kUp), 0u);
  links.Measure(kUp, At(0), At(80));
  EXPECT_EQ(links.micros(kUp), 80u);
  links.Measure(kUp, At(0), At(160));
  EXPECT_EQ(links.micros(kUp), 80u) << "80 of the 160 behind the first one";
}

TEST(LinkClocksTest, TheAverageFollowsAChangeByAnEighth) {
  LinkClocks links;
  links.Measure(kUp, At(0), At(80));
  links.Measure(kUp, At(1000), At(1160));
  EXPECT_EQ(links.micros(kUp), 90u);
  EXPECT_EQ(links.micros({Tier::kHost, Tier::kSsd}), 0u);
  EXPECT_EQ(links.micros({Tier::kHost, Tier::kDevice}), 0u);
}

}  // namespace
}  // namespace memtide

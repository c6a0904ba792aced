#include "base/count.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

TEST(CountTest, ATokenCountsAsLongAsItIsHeld) {
  Count count;
  {
    const Count::Token first = count.Take();
    Count::Token second = count.Take();
    EXPECT_TRUE(second);
    EXPECT_EQ(count.value(), 2u);
    second.End();
    second.End();
    EXPECT_FALSE(second);
    EXPECT_EQ(count.value(), 1u);
  }
  EXPECT_EQ(count.value(), 0u);
}

TEST(CountTest, AMovedTokenIsCountedOnce) {
  Count count;
  std::vector<Count::Token> tokens;
  for (int i = 0; i < 100; ++i) tokens.push_back(count.Take());
  EXPECT_EQ(count.value(), 100u);
  Count::Token token = std::move(tokens[0]);
  EXPECT_EQ(count.value(), 100u);
  token = std::move(tokens[1]);
  EXPECT_EQ(count.value(), 99u) << "the token that was overwritten has ended";
  tokens.clear();
  EXPECT_EQ(count.value(), 1u);
}

TEST(CountTest, SeveralAreLoweredTogetherByWhatWasTaken) {
  Count count;
  Count::Tokens five = count.Take(5), two = count.Take(2);
  EXPECT_EQ(count.value(), 7u);
  std::swap(five, two);
  five.End();
  EXPECT_EQ(count.value(), 5u);
}

TEST(CountTest, ATokenIsAsLargeAsAPointer) { EXPECT_EQ(sizeof(Count::Token), sizeof(void*)); }

TEST(CountDeathTest, ATokenThatOutlivesItsCountEndsTheProcess) {
  EXPECT_DEATH(
      {
        Count::Token outlives;
        Count count;
        outlives = count.Take();
      },
      "1 tokens outlive their count");
}

}  // namespace
}  // namespace memtide

#include "daemon/session/token_table.h"

#include <gtest/gtest.h>

#include <string>

namespace memtide {
namespace {

absl::string_view View(const Token& token) { return {token.data(), token.size()}; }

TEST(TokenTableTest, FindsWhomATokenSpeaksForUntilItIsRevoked) {
  TokenTable table;
  const Token one = table.Mint({SessionId(1), 1000}).value();
  const Token two = table.Mint({SessionId(2), 1001}).value();
  ASSERT_TRUE(table.Find(View(one)).has_value());
  EXPECT_EQ(table.Find(View(one))->session, SessionId(1));
  EXPECT_EQ(table.Find(View(two))->uid, 1001u);
  table.Revoke(one);
  EXPECT_FALSE(table.Find(View(one)).has_value());
  EXPECT_TRUE(table.Find(View(two)).has_value());
}

TEST(TokenTableTest, NeverMintsTheSameTokenTwice) {
  TokenTable table;
  EXPECT_NE(table.Mint({SessionId(1), 0}).value(), table.Mint({SessionId(1), 0}).value());
}

TEST(TokenTableTest, RefusesEveryTokenThatDiffersInOneBit) {
  TokenTable table;
  const Token token = table.Mint({SessionId(1), 0}).value();
  for (size_t bit = 0; bit < 8 * kTokenBytes; ++bit) {
    Token forged = token;
    forged[bit / 8] = static_cast<char>(forged[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(table.Find(View(forged)).has_value()) << "bit " << bit;
    table.Revoke(forged);
  }
  EXPECT_TRUE(table.Find(View(token)).has_value());
}

TEST(TokenTableTest, RefusesTokensOfAnotherLength) {
  TokenTable table;
  const Token token = table.Mint({SessionId(1), 0}).value();
  EXPECT_FALSE(table.Find("").has_value());
  EXPECT_FALSE(table.Find(View(token).substr(0, kTokenBytes - 1)).has_value());
  EXPECT_FALSE(table.Find(std::string(View(token)) + "x").has_value());
}

}  // namespace
}  // namespace memtide

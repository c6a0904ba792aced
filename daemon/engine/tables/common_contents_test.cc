#include "daemon/engine/tables/common_contents.h"

#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr SessionId kFirst{1}, kSecond{2};
constexpr Digest kDigest{3, 4}, kOther{3, 5};

class CommonContentsTest : public testing::Test {
 protected:
  CommonContentsTest() { pool_.Back(4); }

  SlotPool pool_{4};
  CommonContents contents_;
};

TEST_F(CommonContentsTest, AContentIsFoundByItsDigestUntilItIsRemoved) {
  CommonContent& content = contents_.Add(kDigest, pool_.Take());
  {
    const Count::Token reader = content.readers.Take();
    EXPECT_EQ(contents_.Find(kDigest), &content);
    EXPECT_EQ(contents_.Find(kOther), nullptr);
    EXPECT_EQ(contents_.slots().size(), 1u);
  }
  contents_.Remove(content);
  EXPECT_EQ(contents_.Find(kDigest), nullptr);
  EXPECT_TRUE(contents_.empty());
  EXPECT_EQ(pool_.used_slots(), 0u) << "its slot is free again";
}

TEST_F(CommonContentsTest, ContentsWithoutADigestOfTheirOwnAreWholeAndCountTheirReaders) {
  CommonContent& first = contents_.AddWhole(pool_.Take());
  CommonContent& second = contents_.AddWhole(pool_.Take());
  EXPECT_TRUE(first.whole && second.whole);
  EXPECT_EQ(contents_.size(), 2u);
  const Count::Token one = first.readers.Take(), two = first.readers.Take();
  Count::Token three = second.readers.Take();
  EXPECT_EQ(contents_.readers(), 3u);
  three.End();
  contents_.Remove(second);
  EXPECT_EQ(contents_.size(), 1u);
}

TEST_F(CommonContentsTest, WhatASessionOffersTwiceItStillOffersAlone) {
  contents_.Offer(kDigest, kFirst, ChunkId(1));
  contents_.Offer(kDigest, kFirst, ChunkId(2));
  EXPECT_FALSE(contents_.IsOfferedByOthers(kDigest, kFirst));
  EXPECT_TRUE(contents_.IsOfferedByOthers(kDigest, kSecond));
  EXPECT_FALSE(contents_.IsOfferedByOthers(kOther, kSecond));
}

TEST_F(CommonContentsTest, AnOfferLastsUntilAllOfItIsWithdrawn) {
  contents_.Offer(kDigest, kFirst, ChunkId(1));
  contents_.Offer(kDigest, kFirst, ChunkId(2));
  contents_.Offer(kDigest, kSecond, ChunkId(3));
  EXPECT_TRUE(contents_.IsOfferedByOthers(kDigest, kFirst));
  contents_.Withdraw(kDigest, kFirst, ChunkId(1));
  EXPECT_TRUE(contents_.IsOfferedByOthers(kDigest, kSecond));
  const CommonContents::Offers left = {{kFirst, {ChunkId(2)}}, {kSecond, {ChunkId(3)}}};
  EXPECT_EQ(*contents_.OffersOf(kDigest), left);
  contents_.Withdraw(kDigest, kFirst, ChunkId(2));
  EXPECT_FALSE(contents_.IsOfferedByOthers(kDigest, kSecond));
  contents_.Withdraw(kDigest, kSecond, ChunkId(3));
  EXPECT_FALSE(contents_.IsOfferedByOthers(kDigest, kFirst));
  EXPECT_EQ(contents_.OffersOf(kDigest), nullptr);
}

}  // namespace
}  // namespace memtide

#include "daemon/engine/tables/member_table.h"

#include "gtest/gtest.h"

namespace memtide {
namespace {

class MemberTableTest : public testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(members_.Add(ChunkIndex(10 + i)), Member(i));
  }
  void TearDown() override { members_.CheckInvariants(); }

  void Remove(Member member) {
    members_.Free(member);
    members_.Remove(member);
  }

  MemberTable members_;
};

TEST_F(MemberTableTest, ANewChunkGetsTheLowestFreeNumber) {
  Remove(Member(2));
  Remove(Member(0));
  Remove(Member(3));
  EXPECT_EQ(members_[Member(0)], kNoChunk);
  EXPECT_EQ(members_.Add(ChunkIndex(20)), Member(0));
  EXPECT_EQ(members_.Add(ChunkIndex(21)), Member(2));
  EXPECT_EQ(members_.Add(ChunkIndex(22)), Member(3));
  EXPECT_EQ(members_.Add(ChunkIndex(23)), Member(4));
  EXPECT_EQ(members_[Member(2)], ChunkIndex(21));
  EXPECT_EQ(members_.size(), 5u);
  EXPECT_EQ(members_[Member(5)], kNoChunk);
}

TEST_F(MemberTableTest, AFreedChunkKeepsItsNumberUntilItIsRemoved) {
  members_.Free(Member(1));
  EXPECT_EQ(members_.live(), 3u);
  EXPECT_EQ(members_[Member(1)], ChunkIndex(11));
  EXPECT_EQ(members_.Add(ChunkIndex(20)), Member(4));
  members_.Remove(Member(1));
  EXPECT_EQ(members_.Add(ChunkIndex(21)), Member(1));
  EXPECT_EQ(members_.live(), 5u);
}

TEST_F(MemberTableTest, IsEmptyOnlyWhenNoNumberIsInUse) {
  for (uint32_t member = 0; member < 4; ++member) members_.Free(Member(member));
  EXPECT_EQ(members_.live(), 0u);
  for (uint32_t member = 0; member < 4; ++member) {
    EXPECT_FALSE(members_.empty());
    members_.Remove(Member(member));
  }
  EXPECT_TRUE(members_.empty());
}

using MemberTableDeathTest = MemberTableTest;

TEST_F(MemberTableDeathTest, WhatOnlyTheEngineCanGetWrongEndsTheProcess) {
  EXPECT_DEATH(members_.Add(kNoChunk), "kNoChunk");
  EXPECT_DEATH(members_.Remove(Member(0)), "member 0 is removed while its chunk is live");
  members_.Free(Member(1));
  EXPECT_DEATH(members_.Remove(Member(0)), "member 0 is removed while its chunk is live");
  EXPECT_DEATH(members_.Free(Member(1)), "member 1 is freed, but has no live chunk");
  Remove(Member(0));
  EXPECT_DEATH(members_.Free(Member(0)), "member 0 is freed, but has no live chunk");
  EXPECT_DEATH(members_.Free(Member(4)), "member 4 is freed, but has no live chunk");
  EXPECT_DEATH(members_.Remove(Member(0)), "removed twice");
}

}  // namespace
}  // namespace memtide

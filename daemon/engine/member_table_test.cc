#include "daemon/engine/member_table.h"

#include "gtest/gtest.h"

namespace memtide {
namespace {

class MemberTableTest : public testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(members_.Add(ChunkIndex(10 + i)), i);
  }
  void TearDown() override { members_.CheckInvariants(); }

  void Remove(uint32_t member) {
    members_.Free(member);
    members_.Remove(member);
  }

  MemberTable members_;
};

TEST_F(MemberTableTest, ANewChunkGetsTheLowestFreeNumber) {
  Remove(2);
  Remove(0);
  Remove(3);
  EXPECT_EQ(members_[0], kNoChunk);
  EXPECT_EQ(members_.Add(ChunkIndex(20)), 0u);
  EXPECT_EQ(members_.Add(ChunkIndex(21)), 2u);
  EXPECT_EQ(members_.Add(ChunkIndex(22)), 3u);
  EXPECT_EQ(members_.Add(ChunkIndex(23)), 4u);
  EXPECT_EQ(members_[2], ChunkIndex(21));
  EXPECT_EQ(members_.size(), 5u);
}

TEST_F(MemberTableTest, AFreedChunkKeepsItsNumberUntilItIsRemoved) {
  members_.Free(1);
  EXPECT_EQ(members_.live(), 3u);
  EXPECT_EQ(members_[1], ChunkIndex(11));
  EXPECT_EQ(members_.Add(ChunkIndex(20)), 4u);
  members_.Remove(1);
  EXPECT_EQ(members_.Add(ChunkIndex(21)), 1u);
  EXPECT_EQ(members_.live(), 5u);
}

TEST_F(MemberTableTest, IsEmptyOnlyWhenNoNumberIsInUse) {
  for (uint32_t member = 0; member < 4; ++member) members_.Free(member);
  EXPECT_EQ(members_.live(), 0u);
  for (uint32_t member = 0; member < 4; ++member) {
    EXPECT_FALSE(members_.empty());
    members_.Remove(member);
  }
  EXPECT_TRUE(members_.empty());
}

using MemberTableDeathTest = MemberTableTest;

TEST_F(MemberTableDeathTest, WhatOnlyTheEngineCanGetWrongEndsTheProcess) {
  EXPECT_DEATH(members_.Add(kNoChunk), "kNoChunk");
  EXPECT_DEATH(members_.Remove(0), "a live chunk is removed");
  Remove(0);
  EXPECT_DEATH(members_.Free(0), "kNoChunk");
  EXPECT_DEATH(members_.Remove(0), "removed twice");
}

}  // namespace
}  // namespace memtide

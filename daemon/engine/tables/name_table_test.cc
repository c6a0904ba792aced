#include "daemon/engine/tables/name_table.h"

#include "gtest/gtest.h"

namespace memtide {
namespace {

ChunkId IdAt(uint32_t index, uint32_t generation = 1) {
  return ChunkId(uint64_t{generation} << 32 | index);
}
Name NameOf(uint32_t index, uint64_t session) { return {IdAt(index), SessionId(session)}; }

class NameTableTest : public testing::Test {
 protected:
  ~NameTableTest() override { names_.CheckInvariants(); }
  // The own id of entry `from`, of session `owner`, names entry `to`, whose own id is session 1's.
  bool Move(uint32_t id, uint64_t owner, uint32_t from, uint32_t to) {
    return names_.Move(NameOf(id, owner), ChunkIndex(from), NameOf(from, owner), ChunkIndex(to),
                       NameOf(to, 1));
  }
  NameTable names_;
};

TEST_F(NameTableTest, KnowsNothingOfIdsThatNameTheirOwnEntries) {
  EXPECT_EQ(names_.Find(IdAt(3)), absl::nullopt);
  EXPECT_FALSE(names_.IsShared(ChunkIndex(3)));
  EXPECT_EQ(names_.IdFor(ChunkIndex(3), SessionId(1), IdAt(3)), IdAt(3));
}

TEST_F(NameTableTest, AMovedIdNamesTheSharedEntry) {
  EXPECT_TRUE(Move(5, 2, 5, 3)) << "no id names entry 5 any more";
  names_.Forget(ChunkIndex(5));
  EXPECT_EQ(names_.Find(IdAt(5)), ChunkIndex(3));
  EXPECT_TRUE(names_.IsShared(ChunkIndex(3)));
  EXPECT_EQ(names_.IdFor(ChunkIndex(3), SessionId(1), IdAt(3)), IdAt(3));
  EXPECT_EQ(names_.IdFor(ChunkIndex(3), SessionId(2), IdAt(3)), IdAt(5));
  EXPECT_TRUE(names_.Shares(SessionId(1)) && names_.Shares(SessionId(2)));
  EXPECT_FALSE(names_.Shares(SessionId(3)));
}

TEST_F(NameTableTest, TheLastIdOfAnEntryIsNotShared) {
  Move(5, 2, 5, 3);
  names_.Forget(ChunkIndex(5));
  names_.Remove(IdAt(3), ChunkIndex(3));
  EXPECT_FALSE(names_.IsShared(ChunkIndex(3)));
  EXPECT_EQ(names_.Find(IdAt(3)), kNoChunk) << "its own id was freed, and the entry still exists";
  EXPECT_EQ(names_.Find(IdAt(5)), ChunkIndex(3));
  names_.Forget(ChunkIndex(3));
  EXPECT_EQ(names_.moved(), 0u);
}

TEST_F(NameTableTest, AnIdThatWasMovedAndFreedDoesNotNameItsOwnEntryAgain) {
  Move(5, 2, 5, 3);
  names_.Forget(ChunkIndex(5));
  // Entry 3 has only the other id now.
  names_.Move(NameOf(3, 1), ChunkIndex(3), NameOf(3, 1), ChunkIndex(7), NameOf(7, 3));
  names_.CheckInvariants();
  EXPECT_EQ(names_.Find(IdAt(3)), ChunkIndex(7));
  EXPECT_EQ(names_.Find(IdAt(5)), ChunkIndex(3));
}

TEST_F(NameTableTest, AnIdWhoseLastEntryIsFreedDoesNotNameItsOwnEntryAgain) {
  Move(5, 2, 5, 8);
  names_.Forget(ChunkIndex(5));
  names_.AddUnnamed(ChunkIndex(9), IdAt(9));
  names_.Move(NameOf(8, 1), ChunkIndex(8), NameOf(8, 1), ChunkIndex(9), NameOf(9, 1));
  names_.Forget(ChunkIndex(9));
  EXPECT_EQ(names_.Find(IdAt(8)), kNoChunk);
  EXPECT_EQ(names_.Find(IdAt(5)), ChunkIndex(8));
}

TEST_F(NameTableTest, TwoIdsOfOneSessionAreRefusedForAnEntry) {
  EXPECT_DEATH(Move(5, 1, 5, 3), "two ids of one session");
}

TEST_F(NameTableTest, TheIdsOfASessionAreThoseOfTheNextOne) {
  Move(5, 2, 5, 3);
  names_.Forget(ChunkIndex(5));
  names_.ChangeOwner(SessionId(2), SessionId(7));
  EXPECT_EQ(names_.IdFor(ChunkIndex(3), SessionId(7), IdAt(3)), IdAt(5));
  EXPECT_FALSE(names_.Shares(SessionId(2)));
}

TEST_F(NameTableTest, WhatIsRestoredIsWhatWasThere) {
  // Entry 3 has lost its own id, which names entry 4; that of entry 4 was freed.
  names_.Restore(ChunkIndex(3), IdAt(3), {NameOf(5, 2)});
  names_.Restore(ChunkIndex(4), IdAt(4), {NameOf(3, 1), NameOf(6, 2)});
  names_.RestoreEnds();
  names_.CheckInvariants();
  EXPECT_EQ(names_.Find(IdAt(5)), ChunkIndex(3));
  EXPECT_EQ(names_.Find(IdAt(3)), ChunkIndex(4));
  EXPECT_EQ(names_.Find(IdAt(6)), ChunkIndex(4));
  EXPECT_EQ(names_.Find(IdAt(4)), kNoChunk);
  EXPECT_TRUE(names_.IsShared(ChunkIndex(4)));
  names_.Forget(ChunkIndex(3));
  names_.Forget(ChunkIndex(4));
  EXPECT_EQ(names_.moved(), 0u);
}

TEST_F(NameTableTest, AnEntryIsUnnamedUntilAnIdMovesToIt) {
  names_.AddUnnamed(ChunkIndex(3), IdAt(3));
  EXPECT_TRUE(names_.IsUnnamed(ChunkIndex(3)));
  EXPECT_FALSE(names_.IsUnnamed(ChunkIndex(5))) << "its own id names it";
  Move(5, 2, 5, 3);
  EXPECT_FALSE(names_.IsUnnamed(ChunkIndex(3)));
}

}  // namespace
}  // namespace memtide

#include "daemon/engine/tables/chunk_table.h"

#include <random>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

// The table only compares the job of a chunk with nullptr.
class ChunkTableTest : public testing::Test {
 protected:
  ChunkIndex Make() {
    const ChunkIndex index = table_.Make(job_);
    table_.CheckInvariants();
    return index;
  }
  void Release(ChunkIndex index) {
    table_.Free(index);
    table_.Release(index);
    table_.CheckInvariants();
  }

  int address_ = 0;
  Job* const job_ = reinterpret_cast<Job*>(&address_);
  ChunkTable table_;
};

TEST_F(ChunkTableTest, AnIdNamesItsChunkUntilThatIsReleasedAndNeverAnother) {
  const ChunkIndex index = Make();
  const ChunkId id = table_.IdOf(index);
  EXPECT_EQ(table_.Find(id), index);
  Release(index);
  EXPECT_FALSE(table_.Find(id).has_value());
  EXPECT_EQ(Make(), index);
  EXPECT_FALSE(table_.Find(id).has_value());
  EXPECT_NE(table_.IdOf(index), id);
}

TEST_F(ChunkTableTest, AFreedChunkIsNotFoundThoughItsEntryIsUsed) {
  const ChunkIndex index = Make();
  EXPECT_EQ(table_.live(), 1u);
  table_.Free(index);
  EXPECT_EQ(table_.live(), 0u);
  EXPECT_FALSE(table_.Find(table_.IdOf(index)).has_value());
  EXPECT_NE(Make(), index);
}

TEST_F(ChunkTableTest, CopiesAreChangedByOneOwnerAndReadByAll) {
  const ChunkTable::WritableCopies copies(table_);
  const ChunkIndex index = Make();
  copies[index].torn = true;
  EXPECT_TRUE(table_[index].copies().torn);
  static_assert(std::is_same_v<decltype(table_[index].copies()), const Copies&>);
  EXPECT_DEATH(ChunkTable::WritableCopies{table_}, "two owners");
}

TEST_F(ChunkTableTest, AChunkIsInAStepAsLongAsOneHoldsIt) {
  const ChunkIndex a = Make(), b = Make();
  HeldChunks first = table_.Hold({a, b});
  {
    const HeldChunks second = table_.Hold({a});
    HeldChunks moved = std::move(first);
    EXPECT_TRUE(table_[a].in_step() && table_[b].in_step());
    EXPECT_EQ(moved.End(), (std::vector<ChunkIndex>{a, b}));
    EXPECT_TRUE(table_[a].in_step());
    EXPECT_FALSE(table_[b].in_step());
  }
  EXPECT_FALSE(table_[a].in_step());
}

TEST_F(ChunkTableTest, TheEntryThatWasReleasedLastIsTakenFirst) {
  const ChunkIndex a = Make(), b = Make(), c = Make();
  Release(a);
  Release(c);
  EXPECT_EQ(Make(), c);
  EXPECT_EQ(Make(), a);
  EXPECT_EQ(Make(), ChunkIndex(3));
  EXPECT_EQ(table_.Find(table_.IdOf(b)), b);
}

TEST_F(ChunkTableTest, NoIdIsUsedTwiceUnderRandomChunks) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    ChunkTable table;
    std::set<uint64_t> seen;
    std::vector<ChunkIndex> made;
    for (int step = 0; step < 300; ++step) {
      if (made.empty() || random() % 2 == 0) {
        made.push_back(table.Make(job_));
        EXPECT_TRUE(seen.insert(table.IdOf(made.back()).value()).second) << "seed " << seed;
      } else {
        std::swap(made[random() % made.size()], made.back());
        table.Free(made.back());
        table.Release(made.back());
        made.pop_back();
      }
      table.CheckInvariants();
    }
  }
}

TEST_F(ChunkTableTest, RestoredEntriesWithoutAJobAreTakenLowestFirstUnderNewIds) {
  table_.Restore(4, 7);
  const ChunkId restored(uint64_t{6} << 32 | 1);
  EXPECT_EQ(table_.MakeRestored(restored, job_), ChunkIndex(1));
  table_.ReleaseEmpty();
  table_.CheckInvariants();
  EXPECT_EQ(table_.Find(restored), ChunkIndex(1));
  for (const uint32_t index : {0u, 2u, 3u, 4u}) EXPECT_EQ(Make(), ChunkIndex(index));
  EXPECT_EQ(table_[ChunkIndex(2)].generation, 8u);
}

TEST(PinTest, ALeaseIsCountedWhileItIsGrantedAndAsLongAsItsPinExists) {
  Count leases;
  std::vector<Pin> pins;
  for (const uint64_t session : {1, 2}) pins.emplace_back(SessionId(session));
  EXPECT_FALSE(pins[0].granted());
  for (Pin& pin : pins) pin.Grant(Access::kRead, leases.Take());
  EXPECT_EQ(leases.value(), 2u);
  pins[0].Grant(Access::kWrite, leases.Take());
  EXPECT_EQ(leases.value(), 2u) << "it is the same lease";
  EXPECT_EQ(pins[0].access, Access::kWrite);
  pins[0].EndGrant();
  EXPECT_FALSE(pins[0].granted());
  EXPECT_EQ(leases.value(), 1u);
  pins.erase(pins.begin());
  EXPECT_EQ(leases.value(), 1u);
  pins.clear();
  EXPECT_EQ(leases.value(), 0u);
}

using ChunkTableDeathTest = ChunkTableTest;

TEST_F(ChunkTableDeathTest, WhatOnlyTheEngineCanGetWrongEndsTheProcess) {
  const ChunkIndex index = Make();
  EXPECT_DEATH(table_.Release(index), "in use") << "it is live";
  table_.Free(index);
  EXPECT_DEATH(table_.Free(index), "freed twice");
  HeldChunks held = table_.Hold({index});
  EXPECT_DEATH(table_.Release(index), "in use");
  held.End();
  EXPECT_DEATH(table_.Restore(1, 1), "only before anything else");
  table_.Release(index);
  EXPECT_DEATH(table_.Release(index), "released twice");
  EXPECT_DEATH(table_.MakeRestored(table_.IdOf(index), job_), "not restored now");
}

}  // namespace
}  // namespace memtide

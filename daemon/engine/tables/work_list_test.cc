#include "daemon/engine/tables/work_list.h"

#include <memory>

#include "gtest/gtest.h"

namespace memtide {
namespace {

// The list never looks into a job, so that any address stands for one.
class WorkListTest : public testing::Test {
 protected:
  int job_a_ = 0, job_b_ = 0;
  Job* const a_ = reinterpret_cast<Job*>(&job_a_);
  Job* const b_ = reinterpret_cast<Job*>(&job_b_);
  ListedWork of_a_{a_}, of_b_{b_};
  WorkList list_;

  void TearDown() override {
    list_.CheckInvariants();
    while (list_.TakeChunk().has_value() || list_.TakeRoomCheck().has_value()) continue;
    while (list_.prefetching() != nullptr) list_.FinishPrefetch();
    EXPECT_TRUE(list_.empty());
  }
};

TEST_F(WorkListTest, AnEmptyListHasNoWork) {
  EXPECT_TRUE(list_.empty());
  EXPECT_FALSE(list_.TakeChunk().has_value());
  EXPECT_FALSE(list_.TakeRoomCheck().has_value());
  EXPECT_EQ(list_.prefetching(), nullptr);
}

TEST_F(WorkListTest, ChunksAreTakenOldestFirstAndEachOnce) {
  list_.AddChunk(ChunkIndex{4});
  list_.AddChunk(ChunkIndex{2});
  list_.AddChunk(ChunkIndex{4});
  EXPECT_FALSE(list_.empty());
  EXPECT_EQ(list_.TakeChunk(), ChunkIndex{4});
  list_.AddChunk(ChunkIndex{4});  // The chunk changed again while it took its step.
  EXPECT_EQ(list_.TakeChunk(), ChunkIndex{2});
  EXPECT_EQ(list_.TakeChunk(), ChunkIndex{4});
  EXPECT_FALSE(list_.TakeChunk().has_value());
}

TEST_F(WorkListTest, RoomChecksAreTakenNewestFirstAndEachTierOfAJobOnce) {
  list_.AddRoomCheck(of_a_, Tier::kDevice);
  list_.AddRoomCheck(of_a_, Tier::kHost);
  list_.AddRoomCheck(of_b_, Tier::kHost);
  list_.AddRoomCheck(of_a_, Tier::kHost);
  list_.AddRoomCheck(of_a_, Tier::kDevice);
  list_.CheckInvariants();
  absl::optional<WorkList::RoomCheck> check = list_.TakeRoomCheck();
  ASSERT_TRUE(check.has_value());
  EXPECT_TRUE(check->job == b_ && check->tier == Tier::kHost);
  check = list_.TakeRoomCheck();
  ASSERT_TRUE(check.has_value());
  EXPECT_TRUE(check->job == a_ && check->tier == Tier::kHost);
  list_.AddRoomCheck(of_a_,
                     Tier::kHost);  // It is not listed any more, so that it may be again.
  check = list_.TakeRoomCheck();
  ASSERT_TRUE(check.has_value());
  EXPECT_TRUE(check->job == a_ && check->tier == Tier::kHost);
  check = list_.TakeRoomCheck();
  ASSERT_TRUE(check.has_value());
  EXPECT_TRUE(check->job == a_ && check->tier == Tier::kDevice);
  EXPECT_FALSE(list_.TakeRoomCheck().has_value());
}

TEST_F(WorkListTest, AJobThatPrefetchesStaysListedUntilItIsFinished) {
  list_.AddPrefetch(of_a_);
  list_.AddPrefetch(of_a_);
  EXPECT_EQ(list_.prefetching(), a_);
  EXPECT_EQ(list_.prefetching(), a_);
  list_.AddPrefetch(of_b_);
  EXPECT_EQ(list_.prefetching(), b_) << "the newest comes first";
  list_.FinishPrefetch();
  EXPECT_EQ(list_.prefetching(), a_);
  list_.FinishPrefetch();
  EXPECT_EQ(list_.prefetching(), nullptr);
}

using WorkListDeathTest = WorkListTest;

TEST_F(WorkListDeathTest, WhatOnlyTheEngineCanGetWrongEndsTheProcess) {
  EXPECT_DEATH(list_.AddRoomCheck(of_a_, Tier::kSsd), "kSsd");
  EXPECT_DEATH(list_.AddChunk(kNoChunk), "kNoChunk");
  EXPECT_DEATH(list_.FinishPrefetch(), "prefetching_");
  auto goes = std::make_unique<ListedWork>(a_);
  EXPECT_DEATH((list_.AddPrefetch(*goes), goes.reset()), "a job goes, its work stays");
}

}  // namespace
}  // namespace memtide

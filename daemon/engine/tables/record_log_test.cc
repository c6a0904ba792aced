#include "daemon/engine/tables/record_log.h"

#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

TEST(RecordLogTest, ChunksComeInTheOrderOfTheirFirstMarksAndJobsInTheOrderOfTheirIds) {
  RecordLog log;
  for (const uint32_t index : {9u, 4u, 9u, 0u, 4u}) log.Mark(ChunkIndex{index});
  for (const uint64_t job : {3u, 1u, 3u}) log.Mark(JobId(job));
  log.CheckInvariants();
  EXPECT_FALSE(log.empty());
  const RecordLog::Changes changes = log.Take();
  EXPECT_EQ(changes.chunks, (std::vector<ChunkIndex>{ChunkIndex{9}, ChunkIndex{4}, ChunkIndex{0}}));
  EXPECT_EQ(changes.jobs, (std::set<JobId>{JobId(1), JobId(3)}));
}

TEST(RecordLogTest, WhatWasTakenIsInTheNextRecordOnlyIfItChangesAgain) {
  RecordLog log;
  log.Mark(ChunkIndex{1});
  log.Mark(JobId(1));
  log.Take();
  EXPECT_TRUE(log.empty());
  EXPECT_TRUE(log.Take().chunks.empty());
  log.Mark(ChunkIndex{1});
  EXPECT_FALSE(log.empty());
  const RecordLog::Changes changes = log.Take();
  EXPECT_EQ(changes.chunks, std::vector<ChunkIndex>{ChunkIndex{1}});
  EXPECT_TRUE(changes.jobs.empty());
}

// The model keeps the marks in a plain list and looks through it.
TEST(RecordLogTest, AgreesWithASimpleModelUnderRandomMarks) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    RecordLog log;
    std::vector<ChunkIndex> model;
    for (int step = 0; step < 500; ++step) {
      const ChunkIndex index{static_cast<uint32_t>(random() % 40)};
      log.Mark(index);
      bool known = false;
      for (const ChunkIndex old : model) known = known || old == index;
      if (!known) model.push_back(index);
      log.CheckInvariants();
      if (random() % 20 != 0) continue;
      ASSERT_EQ(log.Take().chunks, model) << "seed " << seed;
      model.clear();
    }
  }
}

}  // namespace
}  // namespace memtide

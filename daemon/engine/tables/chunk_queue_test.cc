#include "daemon/engine/tables/chunk_queue.h"

#include "gtest/gtest.h"

namespace memtide {
namespace {

TEST(ChunkQueueTest, TheOldestIndexIsTakenFirst) {
  ChunkQueue queue;
  EXPECT_TRUE(queue.empty());
  for (const uint32_t index : {7u, 0u, 3u}) queue.Add(ChunkIndex{index});
  queue.CheckInvariants();
  for (const uint32_t index : {7u, 0u, 3u}) EXPECT_EQ(queue.Take(), ChunkIndex{index});
  EXPECT_TRUE(queue.empty());
  queue.CheckInvariants();
}

TEST(ChunkQueueTest, AnIndexThatWaitsIsNotAddedTwice) {
  ChunkQueue queue;
  queue.Add(ChunkIndex{5});
  queue.Add(ChunkIndex{2});
  queue.Add(ChunkIndex{5});
  queue.CheckInvariants();
  EXPECT_EQ(queue.Take(), ChunkIndex{5});
  EXPECT_EQ(queue.Take(), ChunkIndex{2});
  EXPECT_TRUE(queue.empty());
}

TEST(ChunkQueueTest, ATakenIndexMayBeAddedAgainBehindTheOthers) {
  ChunkQueue queue;
  queue.Add(ChunkIndex{1});
  queue.Add(ChunkIndex{2});
  EXPECT_EQ(queue.Take(), ChunkIndex{1});
  queue.Add(ChunkIndex{1});
  queue.CheckInvariants();
  EXPECT_EQ(queue.Take(), ChunkIndex{2});
  EXPECT_EQ(queue.Take(), ChunkIndex{1});
  EXPECT_TRUE(queue.empty());
}

TEST(ChunkQueueDeathTest, NothingIsTakenFromAnEmptyQueueAndNoChunkIsNotAdded) {
  ChunkQueue queue;
  EXPECT_DEATH(queue.Take(), "empty");
  EXPECT_DEATH(queue.Add(kNoChunk), "kNoChunk");
}

}  // namespace
}  // namespace memtide

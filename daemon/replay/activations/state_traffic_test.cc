#include "daemon/replay/activations/state_traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/replay/activations/testing/three_blocks.h"

namespace memtide {
namespace {

using testing::ElementsAre;

TEST(StateTrafficTest, WhereAllChunksFitNothingMoves) {
  const StateTraffic traffic = TrafficOf(SequenceOfThreeBlocks(), 3, Below::kHost);
  EXPECT_THAT(traffic.reads, ElementsAre(0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(traffic.writes, ElementsAre(0, 0, 0, 0, 0, 0, 0));
}

TEST(StateTrafficTest, TheChunkWithTheFarthestUseLeaves) {
  // Chunks 0 and 2 are there at first. 0 leaves for 1, as 2 is needed sooner; then 2 for 0; and in
  // the step 1 for 2, as the next iteration begins with 0. All were written in the step before.
  const StateTraffic traffic = TrafficOf(SequenceOfThreeBlocks(), 2, Below::kHost);
  EXPECT_THAT(traffic.reads, ElementsAre(0, 1, 0, 0, 0, 1, 1));
  EXPECT_THAT(traffic.writes, ElementsAre(0, 1, 0, 0, 0, 1, 1));
}

TEST(StateTrafficTest, LeastReadsBeginWithNothingThere) {
  EXPECT_EQ(LeastReads(SequenceOfThreeBlocks(), 0, 6, 3, Below::kHost), 3u);
  EXPECT_EQ(LeastReads(SequenceOfThreeBlocks(), 0, 6, 2, Below::kHost), 4u);
  EXPECT_EQ(LeastReads(SequenceOfThreeBlocks(), 6, 7, 3, Below::kHost), 3u);
}

TEST(StateTrafficTest, WhatIsUsedInHostMemoryIsWrittenBackAndReadAgain) {
  AccessSequence sequence = SequenceOfThreeBlocks();
  sequence.moments[6].on_host = true;  // The step writes all three chunks.
  sequence.moments[3].events[0].kind = ChunkEvent::Kind::kWrite;
  const StateTraffic traffic = TrafficOf(sequence, 3, Below::kHost);
  EXPECT_THAT(traffic.reads, ElementsAre(1, 1, 1, 0, 0, 0, 0));
  EXPECT_THAT(traffic.writes, ElementsAre(0, 0, 0, 0, 0, 0, 1));
  // Above the disk, host memory is one place with the device's.
  EXPECT_THAT(TrafficOf(sequence, 3, Below::kDisk).reads, ElementsAre(0, 0, 0, 0, 0, 0, 0));
}

TEST(StateTrafficTest, PartsWriteShadowChunksThatBecomeTheirChunks) {
  AccessSequence sequence = SequenceOfThreeBlocks();
  sequence.moments[6].is_part = true;  // It writes all three chunks.
  EXPECT_THAT(TrafficOf(sequence, 6, Below::kDisk).writes, ElementsAre(0, 0, 0, 0, 0, 0, 0));
  // The old content leaves, as only a step that fails needs it again. The new one stays, and is
  // that of the chunks when the next iteration reads them.
  const StateTraffic traffic = TrafficOf(sequence, 4, Below::kDisk);
  EXPECT_THAT(traffic.reads, ElementsAre(0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(traffic.writes, ElementsAre(0, 0, 0, 0, 0, 0, 2));
}

TEST(StateTrafficTest, AChunkThatIsAllocatedIsNotRead) {
  AccessSequence sequence = SequenceOfThreeBlocks();
  using Kind = ChunkEvent::Kind;
  sequence.chunks.push_back({ChunkKind::kOther, false});
  sequence.moments[0].events = {{3, Kind::kAllocate}, {3, Kind::kWrite}, {0, Kind::kRead}};
  sequence.moments[1].events = {{1, Kind::kRead}, {3, Kind::kFree}};
  EXPECT_EQ(LeastReads(sequence, 0, 2, 4, Below::kHost), 2u);
  EXPECT_THAT(TrafficOf(sequence, 4, Below::kHost).reads, ElementsAre(0, 0, 0, 0, 0, 0, 0));
}

}  // namespace
}  // namespace memtide

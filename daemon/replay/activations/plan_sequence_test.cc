#include "daemon/replay/activations/plan_sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/replay/activations/testing/three_blocks.h"

namespace memtide {
namespace {

using testing::ElementsAre;

// The moments of the planned iteration as text: "0r 3+ 3w: 10", the events and milliseconds.
std::vector<std::string> TextOf(const AccessSequence& sequence) {
  std::vector<std::string> text;
  for (size_t i = sequence.IterationBegin(1); i < sequence.iteration_ends[1]; ++i) {
    std::vector<std::string> events;
    for (const ChunkEvent& event : sequence.moments[i].events) {
      events.push_back(absl::StrCat(event.chunk, std::string(1, "rw+-"[int(event.kind)])));
    }
    text.push_back(absl::StrCat(absl::StrJoin(events, " "), ": ",
                                sequence.moments[i].compute / std::chrono::milliseconds(1)));
  }
  return text;
}

TEST(PlanSequenceTest, WhereAllIsKeptTheStatesPlayAlone) {
  const AccessSequence sequence =
      SequenceOf(ThreeBlocks(Chunks(64)), {{kKeepAll, kKeepAll, kKeepAll}, kKeep});
  EXPECT_THAT(TextOf(sequence), ElementsAre("0r: 10", "1r: 10", "2r: 10", "2r: 20", "1r: 20",
                                            "0r: 20", "0w 1w 2w: 5"));
  // Before, all states are written.
  EXPECT_EQ(sequence.iteration_ends[0], 1u);
  EXPECT_EQ(sequence.moments[0].events.size(), 3u);
}

TEST(PlanSequenceTest, AMovedPartIsWrittenWhereItIsSavedAndFreedAfterItsUse) {
  EXPECT_THAT(TextOf(SequenceOf(ThreeBlocks(Chunks(64)),
                                {{{kMove, kKeep, kKeep}, kKeepAll, kKeepAll}, kKeep})),
              ElementsAre("0r 3+ 3w: 10", "1r: 10", "2r: 10", "2r: 20", "1r: 20", "3r 0r 3-: 20",
                          "0w 1w 2w: 5"));
}

TEST(PlanSequenceTest, ARecomputedBlockReadsItsInputAndItsParametersAgain) {
  EXPECT_THAT(TextOf(SequenceOf(ThreeBlocks(Chunks(64)),
                                {{kKeepAll, {kMove, kAgain, kAgain}, kKeepAll}, kKeep})),
              ElementsAre("0r: 10", "1r 3+ 3w: 10", "2r: 10", "2r: 20", "3r 1r: 10", "1r 3-: 20",
                          "0r: 20", "0w 1w 2w: 5"));
}

TEST(PlanSequenceTest, WithAttentionMovedABlockRecomputesWithoutIt) {
  EXPECT_THAT(TextOf(SequenceOf(ThreeBlocks(Chunks(64)),
                                {{kKeepAll, {kKeep, kMove, kAgain}, kKeepAll}, kKeep})),
              ElementsAre("0r: 10", "1r 3+ 3w: 10", "2r: 10", "2r: 20", "3r 1r: 8", "1r 3-: 20",
                          "0r: 20", "0w 1w 2w: 5"));
}

TEST(PlanSequenceTest, AChunkWhoseContentHasEndedIsFilledAgain) {
  ActivationModel model = ThreeBlocks(Chunks(64));
  // The input of the block in the middle is used before the last one saves its own.
  model.blocks[1].saved[0].first_unpacked = model.blocks[1].saved[0].last_unpacked = 1;
  const Candidate inputs{{kKeepAll, {kMove, kKeep, kKeep}, {kMove, kKeep, kKeep}}, kKeep};
  EXPECT_EQ(SequenceOf(model, inputs).chunks.size(), 4u);
  model.blocks[1].saved[0].last_unpacked = 2;
  EXPECT_EQ(SequenceOf(model, inputs).chunks.size(), 5u);
}

TEST(PlanSequenceTest, ALargePartTakesSeveralChunksAndSmallOnesShareOne) {
  ActivationModel model = ThreeBlocks(Chunks(64));
  const Candidate all_rests{{{kKeep, kKeep, kMove}, {kKeep, kKeep, kMove}, kKeepAll}, kKeep};
  EXPECT_EQ(MovedChunks(model, all_rests).size(), 6u);
  for (Block& block : model.blocks) block.saved[2].size = KiB(1200);
  const std::vector<MovedChunk> shared = MovedChunks(model, all_rests);
  ASSERT_EQ(shared.size(), 2u);
  EXPECT_THAT(shared[0].writes, ElementsAre(0, 1));
  EXPECT_THAT(shared[0].reads, ElementsAre(4, 5));
  EXPECT_EQ(shared[0].freed, 5u);
  EXPECT_THAT(shared[1].writes, ElementsAre(1));
  // Micro-batches end at different times, so that they share no chunk.
  for (Block& block : model.blocks) block.saved[2].size = KiB(100);
  EXPECT_EQ(MovedChunks(model, all_rests).size(), 1u);
  model.blocks[1].saved[2].micro_batch = 1;
  EXPECT_EQ(MovedChunks(model, all_rests).size(), 2u);
}

}  // namespace
}  // namespace memtide

#include "daemon/replay/activations/candidate.h"

#include <gtest/gtest.h>

#include "daemon/replay/activations/testing/three_blocks.h"

namespace memtide {
namespace {

TEST(CandidateTest, AllKeptIsMostWhereForwardEnds) {
  EXPECT_EQ(MostKept(ThreeBlocks(Chunks(64)), {{kKeepAll, kKeepAll, kKeepAll}, kKeep}), Chunks(15));
}

TEST(CandidateTest, WhatIsMovedIsNotKept) {
  const ActivationModel model = ThreeBlocks(Chunks(64));
  EXPECT_EQ(MostKept(model, {{{kMove, kMove, kMove}, kKeepAll, kKeepAll}, kKeep}), Chunks(10));
  EXPECT_EQ(MostKept(model, {{{kMove, kKeep, kKeep}, kKeepAll, kKeepAll}, kKeep}), Chunks(14));
}

TEST(CandidateTest, WhatIsRecomputedIsKeptFromTheMomentThatNeedsIt) {
  const ActivationModel model = ThreeBlocks(Chunks(64));
  // Two inputs and the last block, at the end of forward.
  EXPECT_EQ(MostKept(model, {{{kKeep, kAgain, kAgain}, {kKeep, kAgain, kAgain}, kKeepAll}, kKeep}),
            Chunks(7));
  // Without the last block, the recomputed one in the middle is the most.
  EXPECT_EQ(
      MostKept(model,
               {{{kMove, kAgain, kAgain}, {kMove, kAgain, kAgain}, {kMove, kMove, kMove}}, kKeep}),
      Chunks(4));
}

TEST(CandidateTest, OthersAreKeptUnlessTheyAreMoved) {
  ActivationModel model = ThreeBlocks(Chunks(64));
  model.others.push_back({SavedPart::kRest, Chunks(100), 2, 3, 3, 0, 0});
  EXPECT_EQ(MostKept(model, {{kKeepAll, kKeepAll, kKeepAll}, kKeep}), Chunks(115));
  EXPECT_EQ(MostKept(model, {{kKeepAll, kKeepAll, kKeepAll}, kMove}), Chunks(15));
}

TEST(CandidateTest, TheLastBlockIsNeverRecomputedAndInputsAreNot) {
  ActivationModel model = ThreeBlocks(Chunks(64));
  EXPECT_TRUE(IsAllowed(model, 1, {kMove, kAgain, kAgain}));
  EXPECT_FALSE(IsAllowed(model, 2, {kMove, kAgain, kAgain}));
  EXPECT_FALSE(IsAllowed(model, 1, {kAgain, kAgain, kAgain}));
  // Attention's results come from a whole forward pass, which gives the rest, too.
  EXPECT_FALSE(IsAllowed(model, 1, {kKeep, kAgain, kKeep}));
  model.blocks[1].recomputable = false;
  EXPECT_FALSE(IsAllowed(model, 1, {kMove, kAgain, kAgain}));
}

TEST(CandidateTest, RecomputingTakesForwardInEachMicroBatch) {
  ActivationModel model = ThreeBlocks(Chunks(64));
  EXPECT_EQ(RecomputeTime(model, {{{kKeep, kAgain, kAgain}, {kKeep, kMove, kAgain}, kKeepAll}}),
            std::chrono::milliseconds(18));
  model.blocks[0].calls.push_back(model.blocks[0].calls[0]);
  EXPECT_EQ(RecomputeTime(model, {{{kKeep, kAgain, kAgain}, kKeepAll, kKeepAll}}),
            std::chrono::milliseconds(20));
}

TEST(CandidateTest, ChunksHaveWhatTheKeptBytesLeave) {
  ActivationModel model = ThreeBlocks(Chunks(20) + KiB(1));
  absl::optional<Division> division = Divide(model, Chunks(15));
  ASSERT_TRUE(division.has_value());
  EXPECT_EQ(division->slots, 5u);
  EXPECT_EQ(division->allowance, Chunks(15) + KiB(1));
  // Chunks need four slots.
  EXPECT_TRUE(Divide(model, Chunks(16)).has_value());
  EXPECT_FALSE(Divide(model, Chunks(17)).has_value());
  EXPECT_FALSE(Divide(model, Chunks(21)).has_value());
  model.fixed_slots = 6;
  EXPECT_EQ(Divide(model, Chunks(1))->slots, 6u);
  EXPECT_FALSE(Divide(model, Chunks(15)).has_value());
}

}  // namespace
}  // namespace memtide

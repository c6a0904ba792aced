#include "daemon/replay/activations/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "daemon/replay/activations/testing/three_blocks.h"

namespace memtide {
namespace {

ActivationModel EqualBlocks(size_t blocks) {
  ActivationModel model = ThreeBlocks(Chunks(64));
  model.blocks.resize(blocks, model.blocks.front());
  return model;
}

// The choices for the blocks' rests: k, m or r for each.
std::string RestsOf(const Candidate& candidate) {
  std::string rests;
  for (const BlockChoice& choice : candidate.blocks) {
    rests.push_back("kmr"[static_cast<int>(choice.rest)]);
  }
  return rests;
}

TEST(PatternTest, TheLastBlocksAreKeptAndTheMovedOnesAreWhereTheOrderSays) {
  const ActivationModel model = EqualBlocks(10);
  Pattern pattern;
  pattern.kept_blocks = 2;
  pattern.moved_blocks = 3;
  EXPECT_EQ(RestsOf(CandidateOf(model, pattern)), "mmmrrrrrkk");
  pattern.order = Pattern::Order::kMovedLast;
  EXPECT_EQ(RestsOf(CandidateOf(model, pattern)), "rrrrrmmmkk");
  pattern.order = Pattern::Order::kMovedSpread;
  EXPECT_EQ(RestsOf(CandidateOf(model, pattern)), "mrmrrmrrkk");
  // The last block is not recomputed.
  pattern.kept_blocks = 0;
  pattern.moved_blocks = 0;
  EXPECT_EQ(RestsOf(CandidateOf(model, pattern)), "rrrrrrrrrm");
}

TEST(PatternTest, SpreadBlocksAreAsManyAsAreMoved) {
  const ActivationModel model = EqualBlocks(97);
  Pattern pattern;
  pattern.order = Pattern::Order::kMovedSpread;
  pattern.kept_blocks = 1;
  for (pattern.moved_blocks = 0; pattern.moved_blocks <= 96; ++pattern.moved_blocks) {
    const std::string rests = RestsOf(CandidateOf(model, pattern));
    EXPECT_EQ(std::count(rests.begin(), rests.end(), 'm'), pattern.moved_blocks);
  }
}

TEST(PatternTest, KeptInputsAreThoseOfTheLastBlocksBeforeTheKeptOnes) {
  Pattern pattern;
  pattern.kept_blocks = 1;
  pattern.kept_inputs = 2;
  pattern.attention = Choice::kMove;
  const Candidate candidate = CandidateOf(EqualBlocks(4), pattern);
  EXPECT_EQ(candidate.blocks[0].input, Choice::kMove);
  EXPECT_EQ(candidate.blocks[0].attention, Choice::kMove);
  EXPECT_EQ(candidate.blocks[1].input, Choice::kKeep);
  EXPECT_EQ(candidate.blocks[1].attention, Choice::kKeep);
  EXPECT_EQ(candidate.blocks[1].rest, Choice::kRecompute);
}

TEST(PatternTest, TheDescentFindsTheNumbersThatTakeLeast) {
  const ActivationModel model = EqualBlocks(24);
  // A time that is least with 5 moved and 7 kept blocks.
  const auto seconds_of = [](const Candidate& candidate) {
    const std::string rests = RestsOf(candidate);
    return std::abs(std::count(rests.begin(), rests.end(), 'm') - 5.0) +
           std::abs(std::count(rests.begin(), rests.end(), 'k') - 7.0);
  };
  double least = 100;
  for (const Pattern& pattern : BestPatterns(model, seconds_of)) {
    least = std::min(least, seconds_of(CandidateOf(model, pattern)));
  }
  EXPECT_EQ(least, 0);
}

}  // namespace
}  // namespace memtide

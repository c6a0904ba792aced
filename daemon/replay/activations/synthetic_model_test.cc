#include "daemon/replay/activations/synthetic_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace memtide {
namespace {

using Kind = ChunkEvent::Kind;

// Five blocks of 1.3 million parameters, whose borders lie within chunks of each arena.
ModelShape SteppedInParts() {
  ModelShape shape;
  PartShape part;
  part.parameters = part.trained = 1'300'000;
  part.forward = part.backward = std::chrono::milliseconds(1);
  for (int i = 0; i < 5; ++i) shape.blocks.push_back({"block", {part}});
  shape.arenas = {
      {ChunkKind::kParameter, 2}, {ChunkKind::kGradient, 2}, {ChunkKind::kOptimizerState, 12}};
  shape.micro_batches = 2;
  shape.chunk_size = MiB(2);
  shape.step_ns_per_parameter = 1;
  shape.step_in_backward = shape.step_on_host = true;
  return shape;
}

bool IsGradient(const AccessSequence& sequence, const ChunkEvent& event) {
  return sequence.chunks[event.chunk].kind == ChunkKind::kGradient;
}

TEST(SyntheticModelTest, PartsStepEveryChunkAndEachStateOnce) {
  const AccessSequence sequence = MakeSyntheticModel(SteppedInParts()).sequence;
  size_t parts = 0;
  std::map<uint32_t, int> uses;
  Duration compute{0};
  for (const PlayedMoment& moment : sequence.moments) {
    EXPECT_EQ(moment.is_part, moment.phase == Phase::kStep);
    if (!moment.is_part) continue;
    compute += moment.compute;
    ++parts;
    uint32_t chunks = 0;
    for (const ChunkEvent& event : moment.events) {
      ++uses[event.chunk];
      EXPECT_EQ(event.kind, IsGradient(sequence, event) ? Kind::kRead : Kind::kWrite);
      chunks += event.kind == Kind::kWrite ? 2 : 1;
    }
    EXPECT_LE(chunks, kPartChunks);
  }
  // Three of 38 chunks of states in each, with one of weights and one of gradients.
  EXPECT_EQ(parts, 13u);
  EXPECT_EQ(uses.size(), sequence.chunks.size());
  for (const auto& [chunk, count] : uses) {
    const bool is_state = sequence.chunks[chunk].kind == ChunkKind::kOptimizerState;
    EXPECT_TRUE(!is_state || count == 1) << chunk;
  }
  EXPECT_NEAR(std::chrono::duration<double>(compute).count(), 6.5e-3, 1e-7);
}

TEST(SyntheticModelTest, GradientsOfPartsAreNewInEachIteration) {
  const AccessSequence sequence = MakeSyntheticModel(SteppedInParts()).sequence;
  std::map<uint32_t, std::vector<Kind>> events;
  for (const PlayedMoment& moment : sequence.moments) {
    for (const ChunkEvent& event : moment.events) events[event.chunk].push_back(event.kind);
  }
  for (const auto& [chunk, kinds] : events) {
    if (sequence.chunks[chunk].kind != ChunkKind::kGradient) continue;
    ASSERT_GE(kinds.size(), 4u);
    EXPECT_EQ(kinds[0], Kind::kFree);
    EXPECT_EQ(kinds[1], Kind::kAllocate);
    EXPECT_EQ(kinds[2], Kind::kWrite);
    EXPECT_EQ(kinds.back(), Kind::kRead);
  }
}

// A gradient's bytes for each parameter: with fewer than weights have, chunks of weights end where
// gradients are still to come in their chunk; with more it is the other way round.
class PartsWait : public testing::TestWithParam<double> {};

INSTANTIATE_TEST_SUITE_P(Gradients, PartsWait, testing::Values(1, 2, 4));

TEST_P(PartsWait, ForAllGradientsInTheirChunks) {
  ModelShape shape = SteppedInParts();
  shape.arenas[1].bytes_per_parameter = GetParam();
  const AccessSequence sequence = MakeSyntheticModel(shape).sequence;
  size_t before_the_end = 0;
  for (size_t i = 0; i < sequence.moments.size(); ++i) {
    if (!sequence.moments[i].is_part) continue;
    const auto later =
        std::find_if(sequence.moments.begin() + static_cast<ptrdiff_t>(i), sequence.moments.end(),
                     [](const PlayedMoment& moment) { return !moment.is_part; });
    before_the_end += later != sequence.moments.end();
    for (auto moment = later; moment != sequence.moments.end(); ++moment) {
      for (const ChunkEvent& event : moment->events) {
        ASSERT_TRUE(event.IsUse());
        for (const ChunkEvent& mine : sequence.moments[i].events) {
          EXPECT_TRUE(moment->is_part || event.chunk != mine.chunk) << i << " uses " << mine.chunk;
        }
      }
    }
  }
  EXPECT_GT(before_the_end, sequence.moments.size() / 4);
}

}  // namespace
}  // namespace memtide

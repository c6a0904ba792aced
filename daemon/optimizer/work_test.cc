// A part of a step as data: what is refused, and what it does to chunks.
#include "daemon/optimizer/work.h"

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide::optimizer {
namespace {

using testing::HasSubstr;

constexpr uint64_t kChunkBytes = 4096;
constexpr uint32_t kReads = 4, kChunks = 7;
constexpr size_t kElements = 8;

// Adam's: chunks 0 to 3 are gradient, parameter and states, 4 to 6 what they become.
Work AdamPart() {
  Work work;
  work.rule = AdamOptions{0.5, 0.9, 0.999, 1e-8, 0};
  Piece piece;
  piece.elements = kElements;
  piece.gradient = {0, 0};
  piece.parameter = {1, 64};
  piece.new_parameter = {4, 64};
  piece.states = {Place{2, 0}, Place{3, 0}};
  piece.new_states = {Place{5, 0}, Place{6, 0}};
  work.pieces = {piece};
  return work;
}

absl::Status Checked(const Work& work) { return Validate(work, kReads, kChunks, kChunkBytes); }

struct Refusal {
  std::string said;
  std::function<void(Work*, Piece*)> spoil;
};

TEST(WorkTest, IsRefusedWithWhatIsWrongAndWhatIsAllowed) {
  ASSERT_TRUE(Checked(AdamPart()).ok()) << Checked(AdamPart());
  const Refusal refusals[] = {
      {"option lr is -1; must be", [](Work* w, Piece*) { w->rule = SgdOptions{-1}; }},
      {"step: 0; steps count from 1", [](Work* w, Piece*) { w->step = 0; }},
      {"gradient_factor: inf; must be finite",
       [](Work* w, Piece*) { w->gradient_factor = std::numeric_limits<double>::infinity(); }},
      {"state_format: FLOAT16", [](Work* w, Piece*) { w->state_format = Format::kFloat16; }},
      {"parameter_format, state", [](Work* w, Piece*) { w->parameter_format = Format::kFloat16; }},
      {"elements: 0; at least 1", [](Work*, Piece* p) { p->elements = 0; }},
      {"gradient: chunk number 4 is not one of the read ones (4 of 7",
       [](Work*, Piece* p) { p->gradient.chunk = 4; }},
      {"new_parameter: chunk number 3 is not one of the written ones",
       [](Work*, Piece* p) { p->new_parameter.chunk = 3; }},
      {"new_state: chunk number 7 is not one",
       [](Work*, Piece* p) { p->new_states[0]->chunk = 7; }},
      {"parameter: offset 2 is not a multiple of the element's 4 bytes",
       [](Work*, Piece* p) { p->parameter.offset = 2; }},
      {"state: 8 elements of 4 bytes from 4068 do not lie in a chunk of 4096",
       [](Work*, Piece* p) { p->states[1]->offset = kChunkBytes - 28; }},
      {"do not lie in a chunk", [](Work*, Piece* p) { p->elements = ~uint64_t{0}; }},
      {"do not lie in a chunk", [](Work*, Piece* p) { p->gradient.offset = ~uint64_t{3}; }},
      {"states: the rule keeps 2; new_states must be as many",
       [](Work*, Piece* p) { p->states[1].reset(); }},
      {"states: the rule keeps 2", [](Work*, Piece* p) { p->new_states[1].reset(); }},
      {"states: the rule keeps 2",
       [](Work*, Piece* p) {
         p->new_states[2] = Place{6, 2048};
       }},
      {"with fresh_states, none", [](Work* w, Piece*) { w->fresh_states = true; }},
      {"overlaps what else is written",
       [](Work*, Piece* p) {
         p->new_states[1] = Place{5, 4 * kElements - 4};
       }},
      {"overlaps what else is written",
       [](Work*, Piece* p) {
         p->new_states[0] = Place{4, 92};
       }},
      {"rounded_format: FLOAT32", [](Work* w, Piece*) { w->rounded_format = Format::kFloat32; }},
      {"rounding_seed is set and parameters are FLOAT32",
       [](Work* w, Piece*) { w->rounding_seed = 1; }},
      {"new_rounded: chunk number 1 is not one of the written",
       [](Work*, Piece* p) {
         p->new_rounded = Place{1, 0};
       }},
      {"new_rounded: 8 elements of 2 bytes from 4082 do not lie",
       [](Work*, Piece* p) {
         p->new_rounded = Place{4, kChunkBytes - 14};
       }},
      {"new_rounded: it overlaps what else is written",
       [](Work*, Piece* p) {
         p->new_rounded = Place{4, 64 - 2 * kElements + 2};
       }},
      {"new_state: it overlaps what else is written",
       [](Work*, Piece* p) {
         p->new_rounded = Place{5, 4 * kElements - 2};
       }},
      {"parameter_format: BFLOAT16 with new_rounded",
       [](Work* w, Piece* p) {
         w->parameter_format = Format::kBfloat16;
         p->new_rounded = Place{4, 0};
       }},
      {"from: chunk number 4 is not one of the read",
       [](Work* w, Piece*) {
         w->copies = {{{4, 0}, {4, 0}, 1}};
       }},
      {"to: 2 elements of 1 bytes from 4095 do not lie",
       [](Work* w, Piece*) {
         w->copies = {{{0, 0}, {4, kChunkBytes - 1}, 2}};
       }},
      {"chunk number 5: 4128 bytes or more are written to it, which holds 4096; write each byte "
       "once",
       [](Work* w, Piece*) {
         w->copies = {{{0, 0}, {5, 0}, kChunkBytes}};
       }},
      {"chunk number 4: 4128 bytes or more are written",
       [](Work* w, Piece* p) { w->pieces.assign(kChunkBytes / (4 * kElements) + 1, *p); }},
      {"chunk number 6: 6144 bytes or more are written",
       [](Work* w, Piece*) {
         w->pieces.clear();
         w->copies.assign(8192, {{0, 0}, {6, 1024}, 2048});
       }},
  };
  for (const Refusal& refusal : refusals) {
    Work work = AdamPart();
    refusal.spoil(&work, &work.pieces[0]);
    const absl::Status status = Checked(work);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << refusal.said;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.said));
  }
}

TEST(WorkTest, MayEndWhereItsChunksEnd) {
  Work work = AdamPart();
  work.pieces[0].new_parameter.offset = kChunkBytes - 4 * kElements;
  work.copies = {{{0, 0}, {4, 0}, kChunkBytes - 4 * kElements}, {{0, kChunkBytes}, {5, 0}, 0}};
  EXPECT_TRUE(Checked(work).ok()) << Checked(work);
}

TEST(WorkTest, KeepsAsManyStatesAsItsRule) {
  AdamOptions adam;
  EXPECT_EQ(StatesOf(adam), 2u);
  adam.amsgrad = true;
  EXPECT_EQ(StatesOf(adam), kMostStates);
  SgdOptions sgd;
  EXPECT_EQ(StatesOf(sgd), 0u);
  sgd.momentum = 0.9;
  EXPECT_EQ(StatesOf(sgd), 1u);
  EXPECT_EQ(StatesOf(AdagradOptions()), 1u);
  EXPECT_EQ(StatesOf(LionOptions()), 1u);
}

// Memory for the chunks of one work.
struct Memory {
  Memory() : chunks(kChunks, std::vector<char>(kChunkBytes)) {
    for (uint32_t i = 0; i < kReads; ++i) {
      for (size_t n = 0; n < kChunkBytes / sizeof(float); ++n) {
        const float value = 1.0f + static_cast<float>(i) + static_cast<float>(n) / 1024;
        std::memcpy(chunks[i].data() + n * sizeof(float), &value, sizeof(float));
      }
    }
  }

  uint64_t Run(const Work& work) {
    std::vector<char*> spans;
    for (std::vector<char>& chunk : chunks) spans.push_back(chunk.data());
    return optimizer::Run(work, spans);
  }
  float At(uint32_t chunk, size_t offset) const {
    float value = 0;
    std::memcpy(&value, chunks[chunk].data() + offset, sizeof(value));
    return value;
  }

  std::vector<std::vector<char>> chunks;
};

TEST(WorkTest, WritesItsSpansAndNothingElseAndTheSameTwice) {
  Work work = AdamPart();
  work.copies = {{{3, 128}, {4, 0}, 64}};
  ASSERT_TRUE(Checked(work).ok()) << Checked(work);
  Memory memory;
  const Memory before = memory;
  EXPECT_EQ(memory.Run(work), 0u);
  const Memory once = memory;
  for (uint32_t i = 0; i < kReads; ++i) EXPECT_EQ(memory.chunks[i], before.chunks[i]) << i;
  EXPECT_EQ(memory.At(4, 0), memory.At(3, 128));
  EXPECT_NE(memory.At(4, 64), 0);
  EXPECT_LT(memory.At(4, 64), memory.At(1, 64)) << "against the gradient's sign";
  EXPECT_EQ(memory.At(4, 64 + 4 * kElements), 0);
  EXPECT_EQ(memory.At(5, 4 * kElements), 0);
  memory.Run(work);
  EXPECT_EQ(memory.chunks, once.chunks);
}

TEST(WorkTest, BeginsFromStatesThatAreNotReadWhereTheyAreFresh) {
  Work work;
  work.rule = AdagradOptions();
  work.fresh_states = true;
  Piece piece;
  piece.elements = kElements;
  piece.gradient = {0, 0};
  piece.parameter = {1, 0};
  piece.new_parameter = {4, 0};
  piece.new_states = {Place{5, 0}};
  work.pieces = {piece};
  ASSERT_TRUE(Checked(work).ok()) << Checked(work);
  Memory memory;
  memory.Run(work);
  EXPECT_EQ(memory.At(5, 0), memory.At(0, 0) * memory.At(0, 0));
}

TEST(WorkTest, RoundsWhatTheMasterBecomes) {
  Work work = AdamPart();
  work.pieces[0].new_rounded = Place{4, 0};
  ASSERT_TRUE(Checked(work).ok()) << Checked(work);
  Memory memory;
  memory.Run(work);
  for (size_t i = 0; i < kElements; ++i) {
    uint16_t upper = 0;
    std::memcpy(&upper, memory.chunks[4].data() + 2 * i, sizeof(upper));
    const uint32_t bits = uint32_t{upper} << 16;
    float rounded = 0;
    std::memcpy(&rounded, &bits, sizeof(rounded));
    const float master = memory.At(4, 64 + 4 * i);
    EXPECT_NEAR(rounded, master, master / 256) << i;
    EXPECT_NE(master, memory.At(1, 64 + 4 * i)) << i;
  }
}

TEST(WorkTest, StochasticRoundingDependsOnTheElementsNumber) {
  Work work = AdamPart();
  work.rule = AdamOptions{0.001, 0.9, 0.999, 1e-8, 0};  // Less than half of bf16's next number.
  work.parameter_format = work.gradient_format = Format::kBfloat16;
  Piece& piece = work.pieces[0];
  piece.elements = 256;
  work.rounding_seed = 7;
  ASSERT_TRUE(Checked(work).ok()) << Checked(work);
  Memory whole, halves;
  whole.Run(work);
  EXPECT_NE(std::memcmp(whole.chunks[4].data() + 64, whole.chunks[1].data() + 64, 512), 0);
  piece.elements = 128;
  halves.Run(work);
  piece.first_element = 128;
  piece.gradient.offset += 256;
  piece.parameter.offset += 256;
  piece.new_parameter.offset += 256;
  for (size_t i = 0; i < 2; ++i) {
    piece.states[i]->offset += 512;
    piece.new_states[i]->offset += 512;
  }
  halves.Run(work);
  EXPECT_EQ(whole.chunks, halves.chunks) << "in two parts, the same bits";
}

TEST(WorkTest, IsDividedAnywhereWithTheSameResult) {
  constexpr size_t kMany = 3 * 4096 + 5, kSize = 4 * kMany + 64;
  std::vector<std::vector<char>> first(kChunks, std::vector<char>(kSize));
  for (uint32_t i = 0; i < kReads; ++i) {
    for (size_t n = 0; n < kSize / sizeof(float); ++n) {
      const float value = 1.0f + static_cast<float>(i) + static_cast<float>(n) / 1024;
      std::memcpy(first[i].data() + n * sizeof(float), &value, sizeof(float));
    }
  }
  Work work = AdamPart();
  work.counts_non_finite = true;
  const float infinite = std::numeric_limits<float>::infinity();
  for (const size_t at : {size_t{0}, 2 * kMany, 4 * kMany - 4}) {
    std::memcpy(first[0].data() + at / 4 * 4, &infinite, sizeof(infinite));
  }
  work.pieces[0].elements = kMany;
  work.copies = {{{0, 0}, {4, 1}, 61}, {{1, 0}, {4, 62}, 0}};
  ASSERT_TRUE(Validate(work, kReads, kChunks, kSize).ok());
  EXPECT_EQ(BytesWritten(work), 61 + 12 * kMany);
  const auto addresses = [](std::vector<std::vector<char>>* chunks) {
    std::vector<char*> spans;
    for (std::vector<char>& chunk : *chunks) spans.push_back(chunk.data());
    return spans;
  };
  std::vector<std::vector<char>> whole = first, divided = first;
  EXPECT_EQ(optimizer::Run(work, addresses(&whole)), 3u);
  Progress progress;
  size_t calls = 1;
  while (!RunSome(work, addresses(&divided), 10, &progress)) ++calls;
  EXPECT_EQ(calls, 7u + 3u) << "ten bytes of the copy at a time, and then a group of elements";
  EXPECT_EQ(progress.non_finite_gradients, 3u);
  EXPECT_EQ(whole, divided);
}

TEST(WorkTest, CountsGradientsThatAreNotFiniteWhereThatIsWanted) {
  Memory memory;
  const float infinite = std::numeric_limits<float>::infinity();
  std::memcpy(memory.chunks[0].data() + 4, &infinite, sizeof(infinite));
  std::memcpy(memory.chunks[0].data() + 4 * kElements, &infinite, sizeof(infinite));  // Not its.
  Work work = AdamPart();
  EXPECT_EQ(memory.Run(work), 0u);
  work.counts_non_finite = true;
  EXPECT_EQ(memory.Run(work), 1u);
}

}  // namespace
}  // namespace memtide::optimizer

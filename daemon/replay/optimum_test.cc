#include "daemon/replay/optimum.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "daemon/replay/replay.h"
#include "daemon/replay/testing/trace_builder.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using EventKind = ChunkEvent::Kind;

// Every state that can be reached, and what it cost: which chunks are above, and which of all were
// written to since they were last written back. A chunk that never comes back need not have been:
// writing is paid for by the read.
class BruteForce {
 public:
  BruteForce(const AccessSequence& sequence, uint32_t slots) : slots_(slots) {
    State start;
    for (uint32_t i = 0; i < sequence.chunks.size(); ++i) {
      if (sequence.chunks[i].from_start) start.below.insert(i);
    }
    costs_[start] = 0;
    for (const PlayedMoment& moment : sequence.moments) {
      for (const ChunkEvent& event : moment.events) Take(event);
    }
  }

  int Least() const {
    int least = 1 << 30;
    for (const auto& [state, cost] : costs_) least = std::min(least, cost);
    return least;
  }

 private:
  struct State {
    std::set<uint32_t> above, dirty, below;
    friend bool operator<(const State& a, const State& b) {
      return std::tie(a.above, a.dirty, a.below) < std::tie(b.above, b.dirty, b.below);
    }
  };

  void Take(const ChunkEvent& event) {
    std::map<State, int> before;
    before.swap(costs_);
    for (const auto& [state, cost] : before) {
      State next = state;
      if (event.kind == EventKind::kFree || event.kind == EventKind::kAllocate) {
        next.above.erase(event.chunk);
        next.dirty.erase(event.chunk);
        next.below.erase(event.chunk);
        Reach(next, cost);
      } else {
        int moves = 0;
        if (next.below.erase(event.chunk) > 0) {
          moves = 1 + static_cast<int>(next.dirty.erase(event.chunk));
        }
        next.above.insert(event.chunk);
        if (event.kind == EventKind::kWrite) next.dirty.insert(event.chunk);
        Leave(next, event.chunk, cost + moves);
      }
    }
    if (event.IsUse()) last_ = event.chunk;
    if (!event.IsUse() && last_ == event.chunk) last_.reset();
  }

  // Any chunk that is not in use may leave, until at most `slots_` chunks are above.
  void Leave(const State& state, uint32_t used, int cost) {
    if (state.above.size() <= slots_) Reach(state, cost);
    for (const uint32_t chunk : state.above) {
      if (chunk == used || chunk == last_) continue;
      State next = state;
      next.above.erase(chunk);
      next.below.insert(chunk);
      Leave(next, used, cost);
    }
  }

  void Reach(const State& state, int cost) {
    const auto [found, added] = costs_.emplace(state, cost);
    if (!added) found->second = std::min(found->second, cost);
  }

  const uint32_t slots_;
  absl::optional<uint32_t> last_;
  std::map<State, int> costs_;
};

std::string RandomIteration(std::mt19937* random, const std::string& operations) {
  std::string text;
  std::set<char> gone;
  for (int i = 0; i < 14; ++i) {
    const char chunk = static_cast<char>('a' + (*random)() % 5);
    const char operation = operations[(*random)() % operations.size()];
    if (gone.count(chunk) > 0) {
      text += {chunk, '+', ' '};
      gone.erase(chunk);
    }
    text += {chunk, operation, ' '};
    if (operation == '-') gone.insert(chunk);
  }
  return text;
}

TEST(OptimumTest, ALoopKeepsWhatFitsBesideTheTwoThatAreLeased) {
  // Two of the other four chunks can stay all the time.
  const LeastMoves moves =
      LeastMovesRepeating(BuildSequence({"ar br cr dr er fr", "ar br cr dr er fr"}), 4, 0);
  EXPECT_NEAR(moves.reads, 5, 1.01);
  EXPECT_EQ(moves.writes, 0);
}

TEST(OptimumTest, WhatFitsMovesOnlyTheFirstTime) {
  const AccessSequence sequence = BuildSequence({"ar bw cr", "ar bw cr"});
  EXPECT_EQ(LeastMovesOnce(sequence, 3).Total(), 3);
  EXPECT_EQ(LeastMovesRepeating(sequence, 3, 0).Total(), 0);
}

TEST(OptimumTest, NewAndFreedChunksCostNothing) {
  EXPECT_EQ(LeastMovesOnce(BuildSequence({"a+ aw a- b+ bw b- c+ cw c-"}), 2).Total(), 0);
  // Unless one is used again: written and read.
  EXPECT_EQ(LeastMovesOnce(BuildSequence({"a+ aw b+ bw c+ cw ar a- b- c-"}), 2).Total(), 2);
}

TEST(OptimumTest, AWriteIsWrittenBackOnceForManyGaps) {
  // With two slots nothing is kept: a is read twice and written once.
  const LeastMoves moves =
      LeastMovesOnce(BuildSequence({"a+ aw b+ br c+ cr ar b- c- d+ dr e+ er ar"}), 2);
  EXPECT_EQ(moves.reads, 2);
  EXPECT_NEAR(moves.writes, 1, 1e-9);
}

TEST(OptimumTest, IsExactWhereEveryUseReadsOrEveryUseWrites) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    for (const std::string operations : {"r", "w", "rrrr-"}) {
      const AccessSequence sequence = BuildSequence({RandomIteration(&random, operations)});
      const uint32_t slots = 2 + random() % 3;
      ASSERT_NEAR(LeastMovesOnce(sequence, slots).Total(), BruteForce(sequence, slots).Least(),
                  1e-6)
          << operations << ", round " << round;
    }
  }
}

TEST(OptimumTest, IsNeverAboveWhatIsPossibleAndSeldomMuchBelow) {
  std::mt19937 random(8);
  double bounds = 0, possible = 0;
  for (int round = 0; round < 200; ++round) {
    const AccessSequence sequence = BuildSequence({RandomIteration(&random, "rrrwww-")});
    const uint32_t slots = 2 + random() % 3;
    const double bound = LeastMovesOnce(sequence, slots).Total();
    const int least = BruteForce(sequence, slots).Least();
    ASSERT_LE(bound, least + 1e-6) << "round " << round;
    bounds += bound;
    possible += least;
  }
  EXPECT_GT(bounds, 0.98 * possible);
}

TEST(OptimumTest, TheBytesOfANodeAreThoseOfItsBoundaries) {
  const AccessSequence sequence = BuildSequence(std::vector<std::string>(3, "aw bw cw dw ew fw"));
  const LinkBytes least = LeastBytes(sequence, {2, 2, false}, kWarmUpIterations);
  EXPECT_EQ(least.to_device, sequence.chunk_size * 6);
  EXPECT_EQ(least.from_device, sequence.chunk_size * 6);
  EXPECT_LT(least.disk_read, least.to_device);
  EXPECT_FALSE(least.disk_read.IsZero());
  EXPECT_EQ(LeastBytes(sequence, {2, 2, true}, kWarmUpIterations).disk_read, Bytes(0));
}

}  // namespace
}  // namespace memtide

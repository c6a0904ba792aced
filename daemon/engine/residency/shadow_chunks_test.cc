// The predicted uses of content that a step creates in a shadow chunk.
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/testing/step_training.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

// Trains as a process does that tells what it uses: the parameter in forward, the gradient, the
// step; and then six others, for which host memory of nine chunks has no room beside it.
class ShadowChunksTest : public testing::Test {
 protected:
  ShadowChunksTest()
      : node_(SmallHost()),
        session_(node_.Open("job", std::chrono::hours(1))),
        training_(&node_, session_) {}

  void Use(size_t n, Access access) {
    if (access == Access::kRead) {
      node_.Read(session_, training_.chunks()[n], kTrainedElements);
    } else {
      node_.Fill(session_, training_.chunks()[n], {1});
    }
    MomentReport moment;
    moment.uses = {{training_.chunks()[n], access}};
    Report(moment);
  }
  void Report(MomentReport moment) {
    node_.Post(ReportCall{node_.Call(), session_, {std::move(moment)}});
  }
  void Forward() { Use(1, Access::kRead); }
  void Backward(uint64_t step) {
    Use(0, Access::kWrite);
    const CallId made = training_.StartStep();
    node_.FinishUntilAnswered(made);
    ASSERT_TRUE(node_.ReplyTo(made).status.ok()) << node_.ReplyTo(made).status;
    for (size_t n = 7; n < 13; ++n) Use(n, Access::kWrite);
  }
  void EndIteration() {
    MomentReport end;
    end.continues = end.ends_iteration = true;
    Report(end);
  }
  void Iterate(uint64_t step) {
    Forward();
    Backward(step);
    ASSERT_TRUE(node_.ReplyTo(training_.Commit(step)).status.ok());
    EndIteration();
  }
  ChunkInfo Describe(size_t n) { return node_.Describe(session_, training_.chunks()[n]); }

  EngineByteHarness node_;
  SessionId session_;
  StepTraining training_;
};

TEST_F(ShadowChunksTest, WhatIsReplacedLeavesFirstWhereThatCostsNothing) {
  for (uint64_t step = 1; step <= 3; ++step) Iterate(step);
  const auto& all = training_.chunks();
  const EvictCall evict{node_.Call(), session_, Tier::kSsd, {all[1], all[2], all[3]}};
  node_.Post(evict);
  node_.FinishUntilAnswered(evict.call);
  Forward();
  Backward(4);
  for (const size_t n : {1u, 2u, 3u}) EXPECT_FALSE(Describe(n).on_host) << n;
  EXPECT_TRUE(Describe(4).on_host) << "the next forward pass reads it";
}

// The shadow chunk is empty after the commit, so that nothing replaces what the chunk holds.
TEST_F(ShadowChunksTest, WhatWasCommittedIsNoFirstVictim) {
  for (uint64_t step = 1; step <= 3; ++step) Iterate(step);
  Forward();
  Backward(4);
  ASSERT_TRUE(node_.ReplyTo(training_.Commit(4)).status.ok());
  const auto& all = training_.chunks();
  const EvictCall evict{node_.Call(), session_, Tier::kSsd, {all[1]}};
  node_.Post(evict);
  node_.FinishUntilAnswered(evict.call);
  // Its copy costs nothing to drop, and host memory has no room for all of these.
  for (const size_t n : {1u, 0u, 2u, 3u, 7u, 8u, 9u, 10u, 11u, 12u}) {
    node_.Read(session_, all[n], kTrainedElements);
  }
  EXPECT_TRUE(Describe(1).on_host) << "the next forward pass reads it";
}

TEST_F(ShadowChunksTest, ChunksAndTwinsEndInAnyOrder) {
  for (uint64_t step = 1; step <= 3; ++step) Iterate(step);
  Forward();
  Backward(4);
  // CheckInvariants examines every chunk and its shadow after each event.
  for (const size_t n : {4u, 2u, 5u, 3u}) {
    node_.Post(FreeCall{node_.Call(), session_, n, {training_.chunks()[n]}});
  }
  EndIteration();
  Forward();
  EXPECT_EQ(node_.Read(session_, training_.chunks()[7], 1), Values({1}));
}

TEST_F(ShadowChunksTest, WhatIsKeptIsNoTwinAnyMore) {
  for (uint64_t step = 1; step <= 3; ++step) Iterate(step);
  Forward();
  Backward(4);
  const Values old = node_.Read(session_, training_.chunks()[1], kTrainedElements);
  ASSERT_TRUE(node_.ReplyTo(training_.Commit(4, /*keep_old_content=*/true)).status.ok());
  EndIteration();
  Forward();
  EXPECT_TRUE(Describe(1).on_host) << "what is kept does not replace it";
  EXPECT_EQ(node_.Read(session_, training_.chunks()[4], kTrainedElements), old);
}

}  // namespace
}  // namespace memtide

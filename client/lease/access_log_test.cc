#include "client/lease/access_log.h"

#include "gtest/gtest.h"
#include "proto/protocol.h"

namespace memtide::client {
namespace {

DaemonLimits Limits() {
  DaemonLimits limits;
  limits.moments_per_call = 40;
  limits.uses_per_call = 60;
  limits.iteration_ends_per_call = 3;
  return limits;
}

Moment Forward(const std::string& name) {
  Moment moment;
  moment.phase = Phase::kForward;
  moment.name = name;
  return moment;
}

TEST(AccessLogTest, RecordsAChunkOncePerMomentAndAgainWhenItIsWritten) {
  AccessLog log(Limits());
  log.Begin(Forward("a"));
  log.Record(ChunkId(1), Access::kRead);
  log.Record(ChunkId(1), Access::kRead);
  log.Record(ChunkId(1), Access::kWrite);
  log.Record(ChunkId(1), Access::kRead);
  log.Record(ChunkId(2), Access::kRead);
  log.Record(ChunkId(1), Access::kRead);
  log.Begin(Forward("b"));
  log.Record(ChunkId(1), Access::kRead);
  const std::vector<Moment> moments = log.Take();
  ASSERT_EQ(moments.size(), 2u);
  ASSERT_EQ(moments[0].uses.size(), 3u);
  EXPECT_EQ(moments[0].uses[1].access, Access::kWrite);
  EXPECT_EQ(moments[0].uses[2].chunk, ChunkId(2));
  EXPECT_EQ(moments[1].uses.size(), 1u);
}

TEST(AccessLogTest, UsesAfterATakeContinueTheMoment) {
  AccessLog log(Limits());
  log.Begin(Forward("a"));
  log.Record(ChunkId(1), Access::kRead);
  EXPECT_FALSE(log.Take()[0].continues);
  log.Record(ChunkId(2), Access::kRead);
  log.EndIteration();
  const std::vector<Moment> moments = log.Take();
  ASSERT_EQ(moments.size(), 1u);
  EXPECT_TRUE(moments[0].continues);
  EXPECT_TRUE(moments[0].ends_iteration);
  EXPECT_EQ(moments[0].uses.size(), 1u);
}

TEST(AccessLogTest, RecordsNothingBeforeTheFirstHint) {
  AccessLog log(Limits());
  log.Record(ChunkId(1), Access::kRead);
  EXPECT_TRUE(log.Take().empty());
}

TEST(AccessLogTest, IterationsNeedNoMoments) {
  AccessLog log(Limits());
  log.EndIteration();
  std::vector<Moment> moments = log.Take();
  ASSERT_EQ(moments.size(), 1u);
  EXPECT_TRUE(moments[0].ends_iteration);
  log.Record(ChunkId(1), Access::kRead);
  log.EndIteration();
  moments = log.Take();
  ASSERT_EQ(moments.size(), 1u);
  EXPECT_TRUE(moments[0].continues);
  EXPECT_EQ(moments[0].uses.size(), 1u);
}

TEST(AccessLogTest, HoldsNoMoreIterationEndsThanOneCallMayCarry) {
  AccessLog log(Limits());
  for (size_t i = 0; i < 3 * Limits().iteration_ends_per_call; ++i) {
    log.Begin(Forward("a"));
    log.EndIteration();
  }
  size_t ends = 0;
  for (const Moment& moment : log.Take()) ends += moment.ends_iteration ? 1 : 0;
  EXPECT_LE(ends, Limits().iteration_ends_per_call);
}

TEST(AccessLogTest, ALogThatIsNeverTakenStaysSmall) {
  AccessLog log(Limits());
  for (int i = 0; i < 100000; ++i) {
    log.Begin(Forward(std::string(1000, 'n')));
    log.Record(ChunkId(static_cast<uint64_t>(i)), Access::kRead);
  }
  EXPECT_TRUE(log.WantsReport());
  const std::vector<Moment> moments = log.Take();
  EXPECT_LE(moments.size(), Limits().moments_per_call / 2);
  EXPECT_EQ(moments.back().name.size(), kMaxMomentNameBytes);
}

}  // namespace
}  // namespace memtide::client

// Host memory that the process of an ended session may still write to.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

class ExposedRegionsTest : public testing::Test {
 protected:
  static EngineOptions Options() {
    EngineOptions options{{}, kChunk * 8, kChunk * 64, Limits()};
    options.limits.session_lease = std::chrono::seconds(2);
    return options;
  }
  static OpenCall Named() {
    OpenCall open;
    open.job_name = "job";
    open.time_to_live = std::chrono::hours(1);
    return open;
  }
  // Time passes, and every session but those in `renewing` is too late.
  void Expire(const std::vector<SessionId>& renewing = {}) {
    for (int i = 0; i < 5; ++i) {
      for (const SessionId session : renewing) node_.Post(RenewCall{node_.Call(), session});
      node_.Wait(std::chrono::milliseconds(600));
    }
  }
  void Write(ChunkId chunk) {
    const CallId fetch = node_.Fetch(session_, {chunk}, Access::kWrite, Tier::kHost);
    node_.FinishTransfers();
    EXPECT_EQ(node_.CodeOf(fetch), absl::StatusCode::kOk) << node_.ReplyTo(fetch).status;
    node_.Release(session_, {chunk});
  }
  std::vector<RegionId> RegionsOf(CallId open) {
    return std::get<OpenReply>(node_.ReplyTo(open).value).regions;
  }

  EngineHarness node_{Options()};
  const SessionId session_ = node_.OpenAs(Named());
  const RegionId region_ = node_.made_.at(0).region;
};

TEST_F(ExposedRegionsTest, WhoJoinsGetsNoRegionThatALateProcessHasMapped) {
  const ChunkId chunk = node_.Allocate(session_, 1)[0];
  Write(chunk);
  node_.hold_memory_ = true;
  Expire();
  ASSERT_EQ(node_.made_.size(), 2u);
  EXPECT_EQ(node_.made_[1].copy_of, region_);
  EXPECT_EQ(node_.made_[1].size, node_.made_[0].size);
  const CallId open = node_.BeginOpenAs(Named());
  EXPECT_FALSE(node_.Answered(open)) << "the old memory is still that of the job";
  EXPECT_TRUE(node_.dropped_.empty());
  node_.FinishMemory();
  EXPECT_EQ(RegionsOf(open), std::vector<RegionId>{node_.made_[1].region});
  EXPECT_EQ(node_.dropped_, std::vector<RegionId>{region_});
  node_.FinishMemory();
  const CallId fetch = node_.Fetch(node_.last_opened(), {chunk}, Access::kRead, Tier::kHost);
  EXPECT_EQ(std::get<FetchReply>(node_.ReplyTo(fetch).value).leases[0].place.region,
            node_.made_[1].region);
}

// The mover copies between chunks, and ends although the session has.
TEST_F(ExposedRegionsTest, NoRegionIsCopiedWhileAPartOfAStepWritesToIt) {
  const std::vector<ChunkId> chunks = node_.Allocate(session_, 2);
  for (const ChunkId chunk : chunks) Write(chunk);
  auto work = std::make_shared<CopyWork>();
  work->copies.push_back({{0, 0}, {1, 0}, kChunk.count()});
  StepCall part;
  part.call = node_.Call();
  part.session = session_;
  part.chunks = chunks;
  part.reads = 1;
  part.work = std::move(work);
  node_.Post(part);
  ASSERT_EQ(node_.steps_.size(), 1u);
  Expire();
  EXPECT_EQ(node_.made_.size(), 1u);
  node_.Post(StepDone{node_.steps_[0].step, absl::OkStatus()});
  ASSERT_EQ(node_.made_.size(), 2u);
  EXPECT_EQ(node_.made_[1].copy_of, region_);
}

TEST_F(ExposedRegionsTest, AJobDoesNotEndWhileASessionWaitsToJoinIt) {
  EngineHarness node{Options()};
  OpenCall named = Named();
  named.time_to_live = std::chrono::seconds(4);
  const CallId first = node.BeginOpenAs(named);
  const JobId job = std::get<OpenReply>(node.ReplyTo(first).value).job;
  node.hold_memory_ = true;
  for (int i = 0; i < 5; ++i) node.Wait(std::chrono::milliseconds(600));
  const CallId open = node.BeginOpenAs(named);
  for (int i = 0; i < 10; ++i) node.Wait(std::chrono::milliseconds(600));
  EXPECT_FALSE(node.Answered(open));
  node.FinishMemory();
  EXPECT_EQ(std::get<OpenReply>(node.ReplyTo(open).value).job, job);
}

TEST_F(ExposedRegionsTest, AProcessWhoseConnectionClosedHasNothingMapped) {
  node_.Post(ClientGone{session_});
  node_.OpenAs(Named());
  EXPECT_EQ(node_.made_.size(), 1u);
}

TEST_F(ExposedRegionsTest, NobodyJoinsWhileOtherSessionsUseThem) {
  const SessionId other = node_.OpenAs(Named());
  Expire({other});
  const CallId open = node_.BeginOpenAs(Named());
  Expire({other});
  EXPECT_FALSE(node_.Answered(open));
  EXPECT_EQ(node_.made_.size(), 1u) << "the other session has it mapped";
  node_.Post(ClientGone{other});
  EXPECT_NE(RegionsOf(open)[0], region_);

  const SessionId third = node_.last_opened();
  node_.OpenAs(Named());
  Expire({third});
  const CallId late = node_.BeginOpenAs(Named());
  for (int i = 0; i < 4; ++i) Expire({third});
  EXPECT_EQ(node_.CodeOf(late), absl::StatusCode::kUnavailable);
  const std::string text(node_.ReplyTo(late).status.message());
  EXPECT_NE(text.find("\"job\""), std::string::npos) << text;
  EXPECT_NE(text.find("End them"), std::string::npos) << text;
}

TEST_F(ExposedRegionsTest, ASessionThatMayStillWriteEndsTheOthersOfItsJob) {
  const SessionId other = node_.OpenAs(Named());
  const ChunkId chunk = node_.Allocate(session_, 1)[0];
  Write(chunk);
  node_.Fetch(session_, {chunk}, Access::kRead, Tier::kHost);
  const SessionId third = node_.OpenAs(Named());
  node_.Fetch(third, node_.Allocate(third, 1), Access::kWrite, Tier::kHost);
  node_.FinishTransfers();
  Expire({other, third});
  ASSERT_EQ(node_.closed_.size(), 1u) << "its leases were for reading";
  Expire({other});
  ASSERT_EQ(node_.closed_.size(), 3u);
  EXPECT_EQ(node_.closed_[2].session, other);
  EXPECT_EQ(node_.closed_[2].reason.code(), absl::StatusCode::kAborted);
  EXPECT_NE(node_.closed_[2].reason.message().find("\"job\""), std::string::npos)
      << node_.closed_[2].reason;
}

TEST_F(ExposedRegionsTest, SoDoesOneWhoseConnectionTheDaemonHasEnded) {
  const SessionId other = node_.OpenAs(Named());
  node_.Fetch(session_, node_.Allocate(session_, 1), Access::kWrite, Tier::kHost);
  node_.FinishTransfers();
  node_.Post(ClientGone{session_, /*process_lives=*/true});
  ASSERT_EQ(node_.closed_.size(), 1u);
  EXPECT_EQ(node_.closed_[0].session, other);
  const CallId open = node_.BeginOpenAs(Named());
  EXPECT_NE(RegionsOf(open)[0], region_);
}

TEST_F(ExposedRegionsTest, WithoutMemoryForACopyTheJobGoesOnAndItIsSaid) {
  node_.fail_memory_ = true;
  Expire();
  ASSERT_EQ(node_.exposed_.size(), 1u);
  EXPECT_EQ(node_.exposed_[0].job_name, "job");
  EXPECT_EQ(node_.exposed_[0].why.message(), "no memory");
  EXPECT_EQ(RegionsOf(node_.BeginOpenAs(Named())), std::vector<RegionId>{region_});
}

TEST_F(ExposedRegionsTest, NothingMovesWhileARegionIsCopied) {
  const std::vector<ChunkId> chunks = node_.Allocate(session_, 4);
  for (const ChunkId chunk : chunks) Write(chunk);
  node_.Post(EvictCall{node_.Call(), session_, Tier::kSsd, {chunks[0]}});
  ASSERT_EQ(node_.transfers_.size(), 1u);
  node_.hold_memory_ = true;
  Expire();
  EXPECT_EQ(node_.made_.size(), 1u) << "copied under a transfer";
  node_.FinishTransfers();
  ASSERT_EQ(node_.made_.size(), 2u);
  // The machine is short of memory, and the balloon wants slots.
  node_.Post(HostMemory{MiB(1), Bytes(0)});
  Expire();
  EXPECT_TRUE(node_.emptied_.empty());
  EXPECT_TRUE(node_.transfers_.empty());
  node_.FinishMemory();
  node_.FinishMemory();
  node_.FinishTransfers();
  const SessionId session = node_.OpenAs(Named());
  for (const ChunkInfo& info : node_.Describe(session, chunks)) EXPECT_FALSE(info.torn);
}

TEST_F(ExposedRegionsTest, OneRegionIsCopiedAtATime) {
  EngineHarness node{Options()};
  OpenCall half = Named();
  half.host_share = kChunk * 4;
  half.ssd_share = kChunk * 32;
  const SessionId first = node.OpenAs(half);
  half.job_name = "other";
  node.OpenAs(half);
  const std::vector<ChunkId> chunk = node.Allocate(first, 1);
  node.Fetch(first, chunk, Access::kWrite, Tier::kHost);
  ASSERT_EQ(node.transfers_.size(), 1u);
  node.hold_memory_ = true;
  for (int i = 0; i < 5; ++i) node.Wait(std::chrono::milliseconds(600));
  ASSERT_EQ(node.made_.size(), 3u) << "that of the job in which nothing moves";
  node.FinishTransfers();
  EXPECT_EQ(node.made_.size(), 3u);
  node.FinishMemory();
  EXPECT_EQ(node.made_.size(), 4u);
}

TEST_F(ExposedRegionsTest, AJobWhoseTimeIsUpEndsWithBothRegions) {
  node_.hold_memory_ = true;
  Expire();
  for (int i = 0; i < 3601; ++i) node_.Wait(std::chrono::seconds(1));
  node_.FinishMemory();
  node_.Wait(std::chrono::milliseconds(100));
  for (int i = 0; i < 3; ++i) node_.FinishMemory();
  EXPECT_EQ(node_.dropped_, (std::vector<RegionId>{region_, node_.made_[1].region}));
  EXPECT_EQ(node_.Inspect().pools[0].free, node_.Inspect().pools[0].capacity);
}

}  // namespace
}  // namespace memtide

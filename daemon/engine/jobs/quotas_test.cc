// Quotas and administration, as sessions meet them.
#include <string>
#include <vector>

#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using absl::StatusCode;

constexpr uint32_t kAlice = 1000, kBob = 1001;
constexpr int kHost = 1;

Quota HostQuota(uint64_t chunks, uint32_t uid = kAlice) {
  Quota quota;
  quota.kind = Quota::Kind::kUser;
  quota.id = uid;
  quota.name = "user:alice";
  quota.most.bytes[kHost] = kChunk * chunks;
  return quota;
}

// A node without a device: 48 host slots, and SSD for 8 segments of 128 slots.
class QuotasTest : public testing::Test {
 protected:
  static EngineOptions Options() {
    EngineOptions options = {{}, kChunk * 48, kChunk * 1024, Limits()};
    options.quotas = {HostQuota(32)};
    return options;
  }
  void SetQuotas(std::vector<Quota> quotas) {
    const SetQuotasCall call{node_.Call(), ++number_, std::move(quotas)};
    node_.Post(call);
    EXPECT_EQ(node_.CodeOf(call.call), StatusCode::kOk);
  }
  CallId EndJob(uint64_t job, absl::optional<uint32_t> viewer = absl::nullopt) {
    const EndJobCall call{node_.Call(), viewer, JobId(job)};
    node_.Post(call);
    return call.call;
  }
  CallId Drain(DrainMode mode) {
    const DrainCall call{node_.Call(), mode};
    node_.Post(call);
    return call.call;
  }
  InspectReply Inspect(absl::optional<uint32_t> viewer = absl::nullopt) {
    InspectCall inspect;
    inspect.call = node_.Call();
    inspect.viewer = viewer;
    inspect.caller = Owner{viewer.value_or(0)};
    inspect.jobs = true;
    node_.Post(inspect);
    return std::get<InspectReply>(node_.ReplyTo(inspect.call).value);
  }
  static OpenCall Fixed(uint64_t host, std::string name = "") {
    OpenCall open;
    open.host_share = kChunk * host;
    open.ssd_share = kChunk * 64;
    open.job_name = std::move(name);
    if (!open.job_name.empty()) open.time_to_live = std::chrono::hours(1);
    return open;
  }
  uint64_t HostOf(size_t job) { return Inspect().jobs.at(job).bytes[kHost] / kChunk; }

  EngineHarness node_{Options()};
  uint64_t number_ = 0;
};

TEST_F(QuotasTest, ASecondElasticJobGetsItsPartOfTheQuota) {
  node_.OpenAs(EngineHarness::ElasticOpen(""), kAlice);
  EXPECT_EQ(HostOf(0), 32u);
  const SessionId second = node_.OpenAs(EngineHarness::ElasticOpen(""), kAlice);
  const InspectReply seen = Inspect();
  EXPECT_LE(seen.jobs[0].bytes[kHost] + seen.jobs[1].bytes[kHost], kChunk * 32);
  EXPECT_GE(seen.jobs[1].bytes[kHost], kChunk * 12) << "what every job begins with";
  EXPECT_EQ(node_.Allocate(second, 4).size(), 4u);
}

TEST_F(QuotasTest, ARefusalIsCountedAndOthersAreServed) {
  const CallId refused = node_.BeginOpenAs(Fixed(33), kAlice);
  EXPECT_EQ(node_.CodeOf(refused), StatusCode::kResourceExhausted);
  EXPECT_EQ(node_.Inspect().counters.over_quota, 1u);
  node_.OpenAs(Fixed(33), kBob);
  EXPECT_EQ(node_.CodeOf(node_.BeginOpenAs(Fixed(16), kAlice)), StatusCode::kResourceExhausted)
      << "the pool is full";
  EXPECT_EQ(node_.Inspect().counters.over_quota, 1u) << "that is no refusal by a quota";
}

TEST_F(QuotasTest, AnOpenThatWaitsIsServedWhenItsQuotaIsRaised) {
  node_.hold_memory_ = true;
  const CallId ends = node_.BeginOpenAs(Fixed(30), kAlice);
  node_.FinishMemory();
  ASSERT_EQ(node_.CodeOf(ends), StatusCode::kOk);
  node_.Post(CloseCall{node_.Call(), node_.last_opened()});
  const CallId waits = node_.BeginOpenAs(Fixed(10), kAlice);
  EXPECT_FALSE(node_.Answered(waits)) << "the job that ends has its memory yet";
  SetQuotas({HostQuota(48)});
  node_.FinishMemory();
  node_.FinishMemory();
  EXPECT_EQ(node_.CodeOf(waits), StatusCode::kOk) << node_.ReplyTo(waits).status;
}

TEST_F(QuotasTest, ALowerQuotaShrinksElasticSharesAndThatOfAnOldCallIsIgnored) {
  const SessionId session = node_.OpenAs(EngineHarness::ElasticOpen(""), kAlice);
  SetQuotas({HostQuota(20)});
  EXPECT_LE(HostOf(0), 20u);
  EXPECT_EQ(node_.budgets_.back().session, session) << "it learns its smaller budget";
  for (const uint64_t number : {number_ - 1, number_}) {
    node_.Post(SetQuotasCall{node_.Call(), number, {HostQuota(48)}});
    EXPECT_EQ(Inspect().quotas.at(0).quota.most.bytes[kHost], kChunk * 20);
  }
  SetQuotas({});
  EXPECT_TRUE(Inspect().quotas.empty());
}

TEST_F(QuotasTest, WhatIsLeasedShrinksWithATickAfterItsRelease) {
  const SessionId session = node_.OpenAs(EngineHarness::ElasticOpen(""), kAlice);
  const std::vector<ChunkId> chunks = node_.Allocate(session, 18);
  const CallId fetch = node_.Fetch(session, chunks, Access::kWrite, Tier::kHost);
  node_.FinishTransfers();
  ASSERT_EQ(node_.CodeOf(fetch), StatusCode::kOk);
  SetQuotas({HostQuota(14)});
  EXPECT_GE(HostOf(0), 18u);
  const QuotaUse over = Inspect().quotas.at(0);
  EXPECT_GT(over.bytes[kHost], *over.quota.most.bytes[kHost]);
  node_.Release(session, chunks);
  for (int i = 0; i < 4; ++i) {
    node_.Wait(std::chrono::milliseconds(100));
    node_.FinishTransfers();
  }
  EXPECT_LE(HostOf(0), 14u);
}

TEST_F(QuotasTest, AJobThatNoQuotaPermitsTakesNothingFromOthers) {
  Quota quota = HostQuota(32);
  quota.most.jobs = 1;
  SetQuotas({quota});
  node_.OpenAs(Fixed(8), kAlice);
  node_.OpenAs(EngineHarness::ElasticOpen(""), kBob);
  const uint64_t of_bob = HostOf(1);
  EXPECT_EQ(node_.CodeOf(node_.BeginOpenAs(EngineHarness::ElasticOpen(""), kAlice)),
            StatusCode::kResourceExhausted);
  quota.most.jobs.reset();
  quota.most.bytes[kHost] = kChunk * 14;
  SetQuotas({quota});
  EXPECT_EQ(node_.CodeOf(node_.BeginOpenAs(EngineHarness::ElasticOpen(""), kAlice)),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(HostOf(1), of_bob);
}

TEST_F(QuotasTest, AnAllocationBeyondTheQuotaSaysSo) {
  const SessionId session = node_.OpenAs(EngineHarness::ElasticOpen(""), kAlice);
  ASSERT_EQ(node_.Allocate(session, 100).size(), 100u);
  Quota quota = HostQuota(32);
  quota.most.bytes[2] = kChunk * 130;
  SetQuotas({quota});
  EXPECT_EQ(node_.Allocate(session, 28).size(), 28u) << "its memory exists";
  const AllocateCall more{node_.Call(), session, 999, 100};
  node_.Post(more);
  ASSERT_EQ(node_.CodeOf(more.call), StatusCode::kResourceExhausted);
  EXPECT_EQ(
      node_.ReplyTo(more.call).status.message().rfind("the quota of user:alice is 260 MiB", 0), 0u)
      << node_.ReplyTo(more.call).status;
}

TEST_F(QuotasTest, RanksThatJoinAreOneJob) {
  Quota quota;
  quota.most.jobs = 1;
  quota.name = "default";
  SetQuotas({quota});
  OpenCall rank = Fixed(16, "training");
  rank.ranks = 2;
  node_.OpenAs(rank, kAlice);
  rank.rank = 1;
  node_.OpenAs(rank, kAlice);
  EXPECT_EQ(Inspect().jobs.size(), 1u);
  EXPECT_EQ(node_.CodeOf(node_.BeginOpenAs(Fixed(16), kAlice)), StatusCode::kResourceExhausted);
}

TEST_F(QuotasTest, AUserSeesItsQuotaAndWhatAJobCouldHave) {
  node_.OpenAs(Fixed(20), kAlice);
  const InspectReply own = Inspect(kAlice), other = Inspect(kBob);
  ASSERT_EQ(own.quotas.size(), 1u);
  EXPECT_EQ(own.quotas[0].bytes[kHost], kChunk * 20);
  EXPECT_EQ(own.quotas[0].jobs, 1u);
  EXPECT_EQ(own.pools.at(0).obtainable, kChunk * 12);
  EXPECT_TRUE(other.quotas.empty());
  EXPECT_TRUE(other.jobs.empty());
  EXPECT_EQ(other.pools.at(0).obtainable, kChunk * 28);
}

TEST_F(QuotasTest, AJobThatIsEndedLeavesNothingWhateverItsTimeToLive) {
  const SessionId session = node_.OpenAs(Fixed(16, "named"), kAlice);
  const std::vector<ChunkId> chunks = node_.Allocate(session, 3);
  const CallId fetch = node_.Fetch(session, chunks, Access::kWrite, Tier::kHost);
  node_.FinishTransfers();
  ASSERT_EQ(node_.CodeOf(fetch), StatusCode::kOk);
  const CallId ended = EndJob(1);
  ASSERT_EQ(node_.CodeOf(ended), StatusCode::kOk);
  const JobInfo& job = std::get<EndJobReply>(node_.ReplyTo(ended).value).job;
  EXPECT_EQ(job.name, "named");
  EXPECT_EQ(job.sessions, 1u);
  EXPECT_EQ(job.bytes[kHost], kChunk * 16);
  ASSERT_EQ(node_.closed_.size(), 1u);
  EXPECT_EQ(node_.closed_[0].session, session);
  EXPECT_EQ(node_.closed_[0].reason.code(), StatusCode::kAborted);
  const InspectReply seen = Inspect();
  EXPECT_TRUE(seen.jobs.empty());
  EXPECT_EQ(seen.session_count, 0u);
  EXPECT_EQ(seen.chunk_count, 0u);
  EXPECT_EQ(seen.pools[0].free, kChunk * 48);
}

TEST_F(QuotasTest, ALingeringJobIsListedAndCanBeEnded) {
  const SessionId session = node_.OpenAs(Fixed(16, "named"), kAlice);
  node_.Allocate(session, 3);
  node_.Post(CloseCall{node_.Call(), session});
  node_.Wait(std::chrono::minutes(10));
  const JobInfo job = Inspect().jobs.at(0);
  EXPECT_EQ(job.state, JobState::kLingering);
  EXPECT_EQ(job.sessions, 0u);
  EXPECT_EQ(job.age, std::chrono::minutes(10));
  EXPECT_EQ(job.lingers_for, std::chrono::minutes(50));
  EXPECT_EQ(node_.CodeOf(EndJob(1, kBob)), StatusCode::kNotFound) << "it is a foreign job";
  EXPECT_EQ(Inspect().jobs.size(), 1u);
  EXPECT_EQ(node_.CodeOf(EndJob(1, kAlice)), StatusCode::kOk);
  EXPECT_TRUE(Inspect().jobs.empty());
  EXPECT_EQ(node_.CodeOf(EndJob(1)), StatusCode::kNotFound);
}

TEST_F(QuotasTest, ADrainOfSessionsLeavesWhatIsOpenAndEnds) {
  const SessionId session = node_.OpenAs(Fixed(16), kAlice);
  EXPECT_EQ(node_.CodeOf(Drain(DrainMode::kSessions)), StatusCode::kOk);
  EXPECT_TRUE(Inspect().refuses_sessions);
  EXPECT_FALSE(Inspect().draining);
  node_.Post(ClientConnected{SessionId(70), kAlice, 1});
  ASSERT_EQ(node_.closed_.size(), 1u);
  EXPECT_EQ(node_.closed_[0].reason.code(), StatusCode::kUnavailable);
  EXPECT_EQ(node_.Allocate(session, 3).size(), 3u) << "it trains on";
  EXPECT_EQ(node_.CodeOf(Drain(DrainMode::kEnd)), StatusCode::kOk);
  EXPECT_FALSE(Inspect().refuses_sessions);
  node_.OpenAs(Fixed(16), kAlice);
}

}  // namespace
}  // namespace memtide

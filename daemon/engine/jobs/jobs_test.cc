#include <variant>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

TEST(JobsTest, AHungClientLosesItsSessionAndItsMemoryComesBack) {
  EngineHarness node(ThreeTiers());
  node.Open();
  for (int i = 0; i < 140; ++i) node.Wait(std::chrono::milliseconds(500));
  EXPECT_EQ(node.Inspect().session_count, 0u);
  for (const PoolUsage& pool : node.Inspect().pools) EXPECT_EQ(pool.free, pool.capacity);
}

TEST(JobsTest, TimeThatTheDaemonWasSuspendedCountsAgainstNoClient) {
  EngineHarness node(ThreeTiers());
  node.Open();
  node.Wait(std::chrono::milliseconds(500));
  node.Wait(std::chrono::hours(1));
  EXPECT_EQ(node.Inspect().session_count, 1u);
}

TEST(JobsTest, MemoryThatCannotBeMadeRefusesTheJobAndLendsNothing) {
  EngineHarness node(ThreeTiers());
  node.fail_memory_ = true;
  node.Post(ClientConnected{SessionId(50), 1, 1});
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(50);
  open.chunk_size = kChunk;
  node.Post(open);
  EXPECT_EQ(node.CodeOf(open.call), absl::StatusCode::kResourceExhausted);
  for (const PoolUsage& pool : node.Inspect().pools) EXPECT_EQ(pool.free, pool.capacity);
}

TEST(JobsTest, NoUserHasMoreJobsThanTheLimit) {
  EngineOptions options = {{}, kChunk * 64, kChunk * 64, Limits()};
  options.limits.jobs_per_uid = 2;
  EngineHarness node(options);
  for (const char* name : {"first", "second"}) node.OpenAs(EngineHarness::ElasticOpen(name));
  node.Post(ClientGone{node.last_opened()});  // The job lingers, and counts.
  const CallId third = node.BeginOpenAs(EngineHarness::ElasticOpen("third"));
  EXPECT_EQ(node.CodeOf(third), absl::StatusCode::kResourceExhausted);
  node.OpenAs(EngineHarness::ElasticOpen("second"));
  node.OpenAs(EngineHarness::ElasticOpen("of another user"), 1001);
}

TEST(JobsTest, AJobWaitsForTheMemoryOfThoseThatEnd) {
  EngineHarness node(ThreeTiers());
  const SessionId first = node.Open();
  node.hold_memory_ = true;
  node.Post(ClientGone{first});
  OpenCall open{node.Call(), SessionId(50)};
  open.chunk_size = kChunk;
  node.Post(ClientConnected{SessionId(50), 1000, 1});
  node.Post(open);
  EXPECT_FALSE(node.Answered(open.call));
  for (int round = 0; round < 8; ++round) node.FinishMemory();  // Dropped first, then made.
  EXPECT_EQ(node.CodeOf(open.call), absl::StatusCode::kOk);
  EXPECT_EQ(std::get<OpenReply>(node.ReplyTo(open.call).value).device_slots, 4u);
}

TEST(JobsTest, AJobDoesNotWaitForeverForMemoryThatStays) {
  EngineHarness node(ThreeTiers());
  const SessionId first = node.Open();
  node.hold_memory_ = true;
  node.Post(ClientGone{first});
  OpenCall open{node.Call(), SessionId(50)}, closed{node.Call(), SessionId(51)};
  open.chunk_size = closed.chunk_size = kChunk;
  node.Post(ClientConnected{SessionId(50), 1000, 1});
  node.Post(ClientConnected{SessionId(51), 1000, 1});
  node.Post(open);
  node.Post(closed);
  node.Post(ClientGone{SessionId(51)});
  EXPECT_EQ(node.CodeOf(closed.call), absl::StatusCode::kUnavailable);
  for (int i = 0; i < 11; ++i) node.Wait(std::chrono::seconds(1));
  EXPECT_EQ(node.CodeOf(open.call), absl::StatusCode::kResourceExhausted);
}

// A process id is no identity: the kernel gives it to the next process.
TEST(JobsTest, SessionsOfOneProcessIdAreApart) {
  EngineHarness node(ThreeTiers());
  const SessionId first = node.Open(1000, "shared");
  node.Post(ClientConnected{SessionId(70), 1000, 1});
  OpenCall open{node.Call(), SessionId(70)};
  open.chunk_size = kChunk;
  open.job_name = "shared";
  node.Post(open);
  ASSERT_EQ(node.CodeOf(open.call), absl::StatusCode::kOk);
  const std::vector<ChunkId> chunks = node.Allocate(first, 2);
  const CallId of_first = node.Fetch(first, {chunks[0]}, Access::kWrite);
  const CallId of_second = node.Fetch(SessionId(70), {chunks[1]}, Access::kWrite);
  node.FinishTransfers();
  ASSERT_EQ(node.CodeOf(of_first), absl::StatusCode::kOk);
  ASSERT_EQ(node.CodeOf(of_second), absl::StatusCode::kOk);
  node.Post(ClientGone{first});
  EXPECT_TRUE(node.Describe(SessionId(70), {chunks[0]})[0].torn);
  EXPECT_FALSE(node.Describe(SessionId(70), {chunks[1]})[0].torn);
  EXPECT_EQ(node.Describe(SessionId(70), {chunks[1]})[0].leases, 1u);
  EXPECT_EQ(node.CodeOf(node.Release(SessionId(70), {chunks[1]})), absl::StatusCode::kOk);
}

// --- What the simulation found (tests/sim) ---

TEST(JobsTest, AJobThatEndsKeepsItsMemoryUntilItsTransfersAreDone) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 2);
  node.Fetch(session,
             {chunks[1]});  // The first chunk has no transfer, and its slots are freed at once.
  node.Post(ClientGone{session});
  EXPECT_TRUE(node.dropped_.empty());
  node.FinishTransfers();
  EXPECT_EQ(node.dropped_.size(), 2u);
}

TEST(JobsTest, ASessionIsNotEndedForTheTimeThatItsMemoryTook) {
  EngineHarness node(ThreeTiers());
  node.hold_memory_ = true;
  node.Post(ClientConnected{SessionId(9), 1000, 1});
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(9);
  open.chunk_size = kChunk;
  node.Post(open);
  for (int second = 0; second < 90; ++second) node.Wait(std::chrono::seconds(1));
  EXPECT_FALSE(node.Answered(open.call));
  node.FinishMemory();
  EXPECT_EQ(node.CodeOf(open.call), absl::StatusCode::kOk);
  node.Wait(std::chrono::seconds(1));
  const RenewCall renew{node.Call(), SessionId(9)};
  node.Post(renew);
  EXPECT_EQ(node.CodeOf(renew.call), absl::StatusCode::kOk);
}

TEST(JobsTest, AShareLargerThanThePoolIsRefusedWhateverTheChunkLimit) {
  EngineOptions options = ThreeTiers();
  options.limits.chunks = 4;
  EngineHarness node(options);
  node.Post(ClientConnected{SessionId(9), 1000, 1});
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(9);
  open.chunk_size = kChunk;
  open.device_share = Bytes(UINT64_MAX);
  node.Post(open);
  EXPECT_EQ(node.CodeOf(open.call), absl::StatusCode::kResourceExhausted);
}

TEST(JobsTest, AJobThatNobodyCouldTakeUpAgainIsRefused) {
  EngineHarness node(ThreeTiers());
  node.Post(ClientConnected{SessionId(9), 1000, 1});
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(9);
  open.chunk_size = kChunk;
  open.time_to_live = std::chrono::hours(1);
  node.Post(open);
  EXPECT_EQ(node.CodeOf(open.call), absl::StatusCode::kInvalidArgument);
}

// The machine slept, or the daemon was stopped: no client could renew.
TEST(JobsTest, TimeInWhichTheDaemonDidNotRunEndsNoSession) {
  EngineOptions options = ThreeTiers();
  options.limits.session_lease = std::chrono::seconds(3);
  EngineHarness node(options);
  const SessionId session = node.Open();
  const ChunkId chunk = node.Allocate(session, 1)[0];
  node.Wait(std::chrono::milliseconds(100));
  node.Wait(std::chrono::hours(1));
  node.Touch(session, chunk, Access::kWrite);
}

}  // namespace
}  // namespace memtide

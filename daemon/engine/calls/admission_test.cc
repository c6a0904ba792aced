// Fetches that wait: how much work they make, what ends them, and how many there may be.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr uint32_t kBatch = 16;

EngineOptions RoomFor(uint32_t batches) {
  EngineOptions options = ThreeTiers();
  options.device_capacities = {kChunk * kBatch * batches};
  options.host_capacity = kChunk * kBatch * batches;
  options.ssd_capacity = kChunk * 1024;
  return options;
}

// A job of two sessions: one has what the other waits for.
struct Flood {
  explicit Flood(uint32_t batches) : node(RoomFor(batches)) {}

  // Looks at chunks while the leases are released and `waiting` fetches of `wanted` wait.
  uint64_t LooksOfARelease(const std::vector<ChunkId>& leased, const std::vector<ChunkId>& wanted,
                           Access access, uint32_t waiting) {
    const CallId first = node.Fetch(holder, leased, Access::kWrite);
    node.FinishTransfers();
    EXPECT_EQ(node.CodeOf(first), absl::StatusCode::kOk);
    std::vector<CallId> fetches;
    for (uint32_t i = 0; i < waiting; ++i) fetches.push_back(node.Fetch(waiter, wanted, access));
    for (const CallId fetch : fetches) EXPECT_FALSE(node.Answered(fetch));
    const uint64_t before = node.Inspect().counters.admission_looks;
    for (const ChunkId chunk : leased) {
      if (chunk != leased.back()) node.Release(holder, {chunk});
    }
    const uint64_t looks = node.Inspect().counters.admission_looks - before;
    node.Release(holder, {leased.back()});
    node.FinishTransfers();
    for (const CallId fetch : fetches) EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kOk);
    node.Release(waiter, wanted);
    return looks;
  }

  EngineHarness node;
  const SessionId holder = node.Open(1000, "job"), waiter = node.Open(1000, "job");
};

TEST(AdmissionTest, ALeaseThatEndsCostsNoLookAtThoseThatWaitForRoom) {
  Flood flood(1);
  const std::vector<ChunkId> leased = flood.node.Allocate(flood.holder, kBatch);
  const std::vector<ChunkId> wanted = flood.node.Allocate(flood.holder, kBatch);
  const uint64_t few = flood.LooksOfARelease(leased, wanted, Access::kRead, 2);
  const uint64_t many = flood.LooksOfARelease(leased, wanted, Access::kRead, 200);
  EXPECT_LE(many, few + kBatch);
}

TEST(AdmissionTest, ALeaseThatEndsCostsNoLookAtThoseThatAnotherExcludes) {
  Flood flood(2);
  const std::vector<ChunkId> leased = flood.node.Allocate(flood.holder, kBatch);
  // The lease that ends last excludes them.
  const std::vector<ChunkId> wanted(leased.rbegin(), leased.rend());
  const uint64_t few = flood.LooksOfARelease(leased, wanted, Access::kWrite, 2);
  const uint64_t many = flood.LooksOfARelease(leased, wanted, Access::kWrite, 200);
  EXPECT_LE(many, few + kBatch);
}

TEST(AdmissionTest, AChunkThatIsFreedEndsItsOwnWaitersAndNoOthers) {
  Flood flood(1);
  const std::vector<ChunkId> leased = flood.node.Allocate(flood.holder, kBatch);
  const std::vector<ChunkId> others = flood.node.Allocate(flood.holder, 3);
  flood.node.Fetch(flood.holder, leased);
  flood.node.FinishTransfers();
  const CallId both = flood.node.Fetch(flood.waiter, {others[0], others[1]});
  const CallId one = flood.node.Fetch(flood.waiter, {others[1]});
  const CallId other = flood.node.Fetch(flood.waiter, {others[2]});
  flood.node.Post(FreeCall{flood.node.Call(), flood.holder, 900, {others[1]}});
  EXPECT_EQ(flood.node.CodeOf(both), absl::StatusCode::kNotFound);
  EXPECT_EQ(flood.node.CodeOf(one), absl::StatusCode::kNotFound);
  EXPECT_FALSE(flood.node.Answered(other));
  flood.node.Release(flood.holder, leased);
  flood.node.FinishTransfers();
  EXPECT_EQ(flood.node.CodeOf(other), absl::StatusCode::kOk);
}

TEST(AdmissionTest, AFetchThatNeedsNoMoreRoomPassesThoseThatWaitForSome) {
  Flood flood(1);
  EngineHarness& node = flood.node;
  const SessionId third = node.Open(1000, "job");
  const std::vector<ChunkId> leased = node.Allocate(flood.holder, kBatch);
  const std::vector<ChunkId> lacking = node.Allocate(flood.holder, 3);
  const ChunkId wanted = node.Allocate(flood.holder, 1)[0];
  node.Fetch(flood.holder, leased);
  node.Fetch(flood.waiter, {leased[0]});
  node.FinishTransfers();
  const CallId oldest = node.Fetch(third, lacking);
  const CallId upgrades = node.Fetch(flood.waiter, {leased[0]}, Access::kWrite);
  const CallId behind = node.Fetch(flood.waiter, {wanted});
  node.Release(flood.holder, {leased[0]});
  EXPECT_EQ(node.CodeOf(upgrades), absl::StatusCode::kOk);
  node.Release(flood.holder, {leased[1]});
  EXPECT_FALSE(node.Answered(behind));
  // A call that fits is admitted at once; then the call before it takes no room either.
  const CallId newcomer = node.Fetch(third, {wanted});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(newcomer), absl::StatusCode::kOk);
  EXPECT_EQ(node.CodeOf(behind), absl::StatusCode::kOk);
  EXPECT_FALSE(node.Answered(oldest));
  node.Release(flood.holder, {leased[2], leased[3], leased[4]});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(oldest), absl::StatusCode::kOk);
}

TEST(AdmissionTest, AReaderIsAnsweredWhenItsChunkIsTornWhileItWaitsForAnother) {
  Flood flood(2);
  const std::vector<ChunkId> chunks = flood.node.Allocate(flood.holder, 2);
  const SessionId writer = flood.node.Open(1000, "job");
  flood.node.Fetch(flood.holder, {chunks[0]}, Access::kWrite);
  flood.node.Fetch(writer, {chunks[1]}, Access::kWrite);
  flood.node.FinishTransfers();
  const CallId reads = flood.node.Fetch(flood.waiter, chunks);
  const CallId writes = flood.node.Fetch(flood.waiter, {chunks[1]}, Access::kWrite);
  flood.node.Post(ClientGone{writer});
  EXPECT_EQ(flood.node.CodeOf(reads), absl::StatusCode::kDataLoss);
  EXPECT_EQ(flood.node.CodeOf(writes), absl::StatusCode::kOk);
}

TEST(AdmissionTest, AJobHasALimitOfWaitingCallsAndOfTheirChunks) {
  EngineOptions options = RoomFor(1);
  options.limits.waiting_calls_per_job = 3;
  options.limits.waiting_chunks_per_job = 5;
  EngineHarness node(options);
  const SessionId holder = node.Open(1000, "job"), waiter = node.Open(1000, "job");
  const std::vector<ChunkId> chunks = node.Allocate(holder, 4);
  node.Fetch(holder, chunks, Access::kWrite);
  node.FinishTransfers();
  std::vector<CallId> waiting = {node.Fetch(waiter, {chunks[0], chunks[1]}),
                                 node.Fetch(holder, {chunks[2], chunks[3]}, Access::kRead)};
  ASSERT_EQ(node.CodeOf(waiting[1]), absl::StatusCode::kOk) << "it has them: nothing waits";
  waiting[1] = node.Fetch(waiter, {chunks[2], chunks[3]});
  const CallId too_many_chunks = node.Fetch(waiter, {chunks[0], chunks[2]});
  EXPECT_EQ(node.CodeOf(too_many_chunks), absl::StatusCode::kResourceExhausted);
  waiting.push_back(node.Fetch(waiter, {chunks[0]}));
  const CallId too_many = node.Fetch(holder, {chunks[0]});
  EXPECT_EQ(node.CodeOf(too_many), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(node.Inspect().counters.calls_refused, 2u);
  node.Release(holder, chunks);
  node.FinishTransfers();
  for (const CallId call : waiting) EXPECT_EQ(node.CodeOf(call), absl::StatusCode::kOk);
  EXPECT_EQ(node.CodeOf(node.Fetch(waiter, chunks)), absl::StatusCode::kOk);
}

TEST(AdmissionTest, AUserHasALimitOfWaitingCallsAndOfTheirChunksInAllItsJobs) {
  EngineOptions options = RoomFor(4);
  options.ssd_capacity = kChunk * 4096;
  options.limits.waiting_calls_per_uid = 3;
  options.limits.waiting_chunks_per_uid = 5;
  EngineHarness node(options);
  OpenCall open;
  open.device_share = open.host_share = kChunk * kBatch;
  open.ssd_share = kChunk * 64;
  struct Training {
    SessionId holder, waiter;
    std::vector<ChunkId> chunks;
  };
  std::vector<Training> trainings;
  for (const auto& [job, uid] : std::vector<std::pair<std::string, uint32_t>>{
           {"first", 1000}, {"second", 1000}, {"third", 1001}}) {
    open.job_name = job;
    Training training{node.OpenAs(open, uid), node.OpenAs(open, uid), {}};
    training.chunks = node.Allocate(training.holder, 3);
    node.Fetch(training.holder, training.chunks, Access::kWrite);
    node.FinishTransfers();
    trainings.push_back(training);
  }
  const auto fetch = [&](int job, size_t chunks) {
    const Training& training = trainings[job];
    return node.Fetch(training.waiter, {training.chunks.begin(), training.chunks.begin() + chunks});
  };
  fetch(0, 2);
  fetch(1, 2);
  const CallId too_many_chunks = fetch(0, 2);
  EXPECT_EQ(node.ReplyTo(too_many_chunks).status,
            absl::ResourceExhaustedError(
                "the waiting calls of user 1000 name 4 chunks; with these 2 they would be more "
                "than 5 (waiting_chunks_per_uid); wait for some of them first, or name fewer "
                "chunks"));
  const CallId last = fetch(1, 1);
  EXPECT_FALSE(node.Answered(last));
  EXPECT_EQ(
      node.ReplyTo(fetch(0, 1)).status,
      absl::ResourceExhaustedError("the sessions of user 1000 have its limit of 3 waiting calls "
                                   "(waiting_calls_per_uid); wait for some of them first"));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(node.Answered(fetch(2, 1))) << "another user";
  node.Post(ClientGone{trainings[1].waiter});
  EXPECT_FALSE(node.Answered(fetch(0, 2))) << "what has ended counts no more";
}

TEST(AdmissionTest, EvictionsCountAsCallsThatWait) {
  EngineOptions options = RoomFor(1);
  options.limits.waiting_calls_per_job = 1;
  EngineHarness node(options);
  const SessionId session = node.Open(1000, "job"), other = node.Open(1000, "job");
  const std::vector<ChunkId> chunks = node.Allocate(session, 2);
  for (const ChunkId chunk : chunks) node.Touch(session, chunk, Access::kWrite);
  const EvictCall first{node.Call(), session, Tier::kSsd, {chunks[0]}};
  node.Post(first);
  EXPECT_FALSE(node.Answered(first.call));
  const EvictCall second{node.Call(), other, Tier::kSsd, {chunks[1]}};
  node.Post(second);
  EXPECT_EQ(node.CodeOf(second.call), absl::StatusCode::kResourceExhausted);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(first.call), absl::StatusCode::kOk);
  const EvictCall third{node.Call(), other, Tier::kSsd, {chunks[1]}};
  node.Post(third);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(third.call), absl::StatusCode::kOk);
}

TEST(AdmissionTest, ATickLooksOnlyAtCallsWhoseDeadlineHasPassed) {
  Flood flood(1);
  EngineHarness& node = flood.node;
  const std::vector<ChunkId> leased = node.Allocate(flood.holder, 2);
  node.Fetch(flood.holder, leased, Access::kWrite);
  node.FinishTransfers();
  FetchCall late;
  late.call = node.Call();
  late.session = flood.waiter;
  late.chunks = {leased[0]};
  late.deadline = std::chrono::milliseconds(1);
  node.Post(late);
  for (int i = 0; i < 200; ++i) node.Fetch(flood.waiter, {leased[1]});
  const uint64_t before = node.Inspect().counters.admission_looks;
  node.Wait(std::chrono::milliseconds(2));
  EXPECT_EQ(node.CodeOf(late.call), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(node.Inspect().counters.deadlines_exceeded, 1u);
  EXPECT_LE(node.Inspect().counters.admission_looks - before, 2u);
}

// A job whose chunk is on SSD alone.
struct OnSsd {
  OnSsd() {
    node.Touch(session, chunk, Access::kWrite);
    EvictCall evict{node.Call(), session, Tier::kSsd, {chunk}};
    node.Post(evict);
    node.FinishTransfers();
    EXPECT_EQ(node.CodeOf(evict.call), absl::StatusCode::kOk);
  }

  EngineHarness node{ThreeTiers()};
  const SessionId session = node.Open(1000, "job");
  const ChunkId chunk = node.Allocate(session, 1)[0];
};

TEST(AdmissionTest, AReadFromSsdSaysWhetherACallWaitsForIt) {
  OnSsd job;
  const CallId fetch = job.node.Fetch(job.session, {job.chunk});
  ASSERT_EQ(job.node.transfers_.size(), 1u);
  EXPECT_EQ(job.node.transfers_[0].kind, StartTransfer::Kind::kSsdToHost);
  EXPECT_TRUE(job.node.transfers_[0].awaited);
  const JobId owner = job.node.transfers_[0].job;
  job.node.FinishTransfers();
  EXPECT_EQ(job.node.CodeOf(fetch), absl::StatusCode::kOk);
  EXPECT_TRUE(job.node.awaited_.empty());
  EXPECT_NE(owner, JobId());
}

}  // namespace
}  // namespace memtide

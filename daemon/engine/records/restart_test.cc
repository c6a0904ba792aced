// The jobs and chunks that a daemon that dies leaves to the next one.
#include "daemon/engine/testing/step_training.h"

namespace memtide {
namespace {

constexpr Duration kResumableFor = std::chrono::hours(1);

EngineOptions Kept(EngineOptions options) {
  options.persistent_jobs = true;
  return options;
}

TEST(RestartTest, ChunksKeepTheirNamesAndTheirContent) {
  EngineByteHarness node(Kept(SmallHost()));
  SessionId session = node.Open("job", kResumableFor);
  const std::vector<ChunkId> chunks = node.Allocate(session, 20);  // More than the host holds.
  for (size_t i = 0; i < chunks.size(); ++i) {
    node.Fill(session, chunks[i], {static_cast<float>(i)});
  }
  node.DaemonDies(0);
  session = node.Open("job", kResumableFor);
  for (size_t i = 0; i < chunks.size(); ++i) {
    EXPECT_EQ(node.Read(session, chunks[i], 1)[0], static_cast<float>(i)) << i;
  }
  const std::vector<ChunkId> more = node.Allocate(session, 20);
  for (const ChunkId chunk : more) node.Fill(session, chunk, {100});
  EXPECT_EQ(node.Read(session, chunks[3], 1)[0], 3);
}

// Records have no ranks of such a job, so that the same call was refused after a restart.
TEST(RestartTest, AJobOfOneRankIsJoinedAsItWasOpened) {
  EngineByteHarness node(Kept(SmallHost()));
  const SessionId session = node.OpenRank("job", kResumableFor, 0, 1);
  const ChunkId chunk = node.Allocate(session, 1)[0];
  node.Fill(session, chunk, {5});
  node.DaemonDies(0);
  EXPECT_EQ(node.Read(node.OpenRank("job", kResumableFor, 0, 1), chunk, 1)[0], 5);
}

// Copies that are also on SSD are dropped without a transfer, and others come into their slots.
TEST(RestartTest, DeathWhileChunksTakeTurnsInHostMemoryLosesNone) {
  for (int at = 0; at < 40; ++at) {
    SCOPED_TRACE(at);
    EngineByteHarness node(Kept(SmallHost()));
    SessionId session = node.Open("job", kResumableFor);
    const std::vector<ChunkId> chunks = node.Allocate(session, 20);
    for (size_t i = 0; i < chunks.size(); ++i) {
      node.Fill(session, chunks[i], {static_cast<float>(i)});
    }
    for (const ChunkId chunk : chunks) node.Read(session, chunk, 1);
    for (const ChunkId chunk : chunks) {
      node.Post(FetchCall{node.Call(), session, Tier::kHost, Access::kRead, {chunk}, {}});
    }
    for (int i = 0; i < at; ++i) node.Advance();
    EXPECT_TRUE(node.DaemonDies(2).empty()) << "rubbish is where transfers were going";
    session = node.Open("job", kResumableFor);
    for (size_t i = 0; i < chunks.size(); ++i) {
      ASSERT_EQ(node.Read(session, chunks[i], 1)[0], static_cast<float>(i)) << i;
    }
  }
}

// Each had the pool for itself once: their regions together are larger than it.
TEST(RestartTest, ElasticSharesStayWithinThePool) {
  EngineOptions options = Kept(SmallHost());
  options.host_capacity = MiB(96);
  options.ssd_capacity = MiB(1024);
  EngineByteHarness node(options);
  node.elastic_ = true;
  const std::vector<std::string> names = {"a", "b"};
  std::vector<std::vector<ChunkId>> chunks;
  for (size_t job = 0; job < names.size(); ++job) {
    const SessionId session = node.Open(names[job], kResumableFor);
    chunks.push_back(node.Allocate(session, 60));
    for (const ChunkId chunk : chunks[job]) node.Fill(session, chunk, {static_cast<float>(job)});
    node.Post(ClientGone{session});
  }
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(node.DaemonDies(round).empty());
    for (size_t job = 0; job < names.size(); ++job) {
      const SessionId session = node.Open(names[job], kResumableFor);
      for (const ChunkId chunk : chunks[job]) {
        ASSERT_EQ(node.Read(session, chunk, 1)[0], static_cast<float>(job));
      }
      for (const ChunkId chunk : node.Allocate(session, 20)) node.Fill(session, chunk, {7});
      node.Post(ClientGone{session});
    }
  }
}

TEST(RestartTest, WhatWasFreedStaysFreed) {
  EngineByteHarness node(Kept(SmallHost()));
  SessionId session = node.Open("job", kResumableFor);
  const std::vector<ChunkId> chunks = node.Allocate(session, 4);
  node.Free(session, chunks[1]);
  node.DaemonDies(0);
  session = node.Open("job", kResumableFor);
  EXPECT_EQ(node.Fetch(session, chunks[1], Tier::kHost, Access::kRead).status.code(),
            absl::StatusCode::kNotFound);
  EXPECT_NE(node.Allocate(session, 1)[0], chunks[1]);
}

TEST(RestartTest, WhatAWriterHeldIsSaidToBeLost) {
  EngineByteHarness node(Kept(SmallHost()));
  SessionId session = node.Open("job", kResumableFor);
  const std::vector<ChunkId> chunks = node.Allocate(session, 2);
  for (const ChunkId chunk : chunks) node.Fill(session, chunk, {1});
  ASSERT_TRUE(node.Fetch(session, chunks[0], Tier::kHost, Access::kWrite).status.ok());
  node.DaemonDies(0);
  session = node.Open("job", kResumableFor);
  EXPECT_EQ(node.Fetch(session, chunks[0], Tier::kHost, Access::kRead).status.code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(node.Read(session, chunks[1], 1)[0], 1);
  node.Fill(session, chunks[0], {2});
  EXPECT_EQ(node.Read(session, chunks[0], 1)[0], 2) << "it can be written anew";
}

TEST(RestartTest, WhatWasOnTheDeviceAloneIsSaidToBeLost) {
  EngineByteHarness node(Kept(WithDevice()));
  SessionId session = node.Open("job", kResumableFor);
  const ChunkId chunk = node.Allocate(session, 1)[0];
  ASSERT_TRUE(node.Fetch(session, chunk, Tier::kDevice, Access::kWrite).status.ok());
  node.Release(session, chunk);
  node.DaemonDies(0);
  session = node.Open("job", kResumableFor);
  EXPECT_EQ(node.Fetch(session, chunk, Tier::kDevice, Access::kRead).status.code(),
            absl::StatusCode::kDataLoss);
}

// Host memory is wanted for others while the device has a copy: that one would not outlive us.
TEST(RestartTest, ACopyOnTheDeviceDoesNotStandForOneThatLasts) {
  EngineByteHarness node(Kept(WithDevice()));
  SessionId session = node.Open("job", kResumableFor);
  const std::vector<ChunkId> chunks = node.Allocate(session, 16);
  node.Fill(session, chunks[0], {7});
  ASSERT_TRUE(node.Fetch(session, chunks[0], Tier::kDevice, Access::kRead).status.ok());
  for (size_t i = 1; i < chunks.size(); ++i) node.Fill(session, chunks[i], {1});
  ASSERT_TRUE(node.Describe(session, chunks[0]).on_device);
  node.DaemonDies(0);
  session = node.Open("job", kResumableFor);
  EXPECT_EQ(node.Read(session, chunks[0], 1)[0], 7);
}

TEST(RestartTest, AJobThatNobodyTakesUpEndsWithItsTimeToLive) {
  EngineByteHarness node(Kept(SmallHost()));
  node.Allocate(node.Open("job", std::chrono::seconds(10)), 4);
  node.DaemonDies(0);
  EXPECT_EQ(node.memory_segments(), 2u) << "one region, one store";
  for (int i = 0; i < 110; ++i) node.Advance();
  EXPECT_EQ(node.memory_segments(), 0u);
  node.DaemonDies(0);
  OpenReply opened;
  node.Open("job", kResumableFor, &opened);
  EXPECT_EQ(opened.committed_step, 0u);
}

TEST(RestartTest, AJobWithoutATimeToLiveEndsWithTheDaemon) {
  EngineByteHarness node(Kept(SmallHost()));
  node.Allocate(node.Open("", Duration(0)), 4);
  node.DaemonDies(0);
  EXPECT_EQ(node.memory_segments(), 0u);
}

TEST(RestartTest, AJobThatNoLongerFitsIsGivenUp) {
  EngineByteHarness node(Kept(SmallHost()));
  const SessionId session = node.Open("job", kResumableFor);
  node.Allocate(session, 4);
  StepTraining training(&node, session);
  training.Step(1);
  EngineOptions smaller = Kept(SmallHost());
  smaller.host_capacity = EngineByteHarness::kChunk * 8;
  const std::vector<JobLost> lost = node.DaemonDies(0, smaller);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].job_name, "job");
  EXPECT_EQ(lost[0].committed_step, 1u);
  EXPECT_EQ(lost[0].why.code(), absl::StatusCode::kResourceExhausted) << lost[0].why;
  EXPECT_EQ(node.memory_segments(), 0u);
  OpenReply opened;
  node.Open("job", kResumableFor, &opened);
  EXPECT_EQ(opened.committed_step, 0u) << "the name is free";
}

TEST(RestartTest, AnElasticJobThatExceedsASmallerPoolIsGivenUp) {
  EngineOptions options = Kept(SmallHost());
  options.host_capacity = MiB(96);
  EngineByteHarness node(options);
  node.elastic_ = true;
  const SessionId session = node.Open("job", kResumableFor);
  for (const ChunkId chunk : node.Allocate(session, 40)) node.Fill(session, chunk, {1});
  options.host_capacity = EngineByteHarness::kChunk * 8;
  const std::vector<JobLost> lost = node.DaemonDies(0, options);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].why.code(), absl::StatusCode::kResourceExhausted) << lost[0].why;
}

TEST(RestartTest, RecordsThatContradictEachOtherAreRefused) {
  JobRecord job;
  job.job = JobId(1);
  job.chunk_size = EngineByteHarness::kChunk;
  job.time_to_live = kResumableFor;
  job.shares = {Bytes(0), EngineByteHarness::kChunk * 9, EngineByteHarness::kChunk * 64};
  job.slots_per_region = 9;
  job.slots_per_store = 64;
  job.regions = {RegionId(1)};
  job.stores = {StoreId(2)};
  ChunkRecord a;
  a.chunk = ChunkId(uint64_t{1} << 32);
  a.job = job.job;
  a.ssd = ChunkRecord::Copy{5, true};
  ChunkRecord b = a;
  b.chunk = ChunkId(uint64_t{1} << 32 | 1);

  const auto why = [](const Restore& restore) -> absl::Status {
    Engine engine(Kept(SmallHost()));
    std::vector<Effect> effects;
    engine.Handle(Instant(std::chrono::seconds(1)), restore, &effects);
    engine.CheckInvariants();
    for (const Effect& effect : effects) {
      if (const auto* lost = std::get_if<JobLost>(&effect)) return lost->why;
    }
    return absl::OkStatus();
  };
  EXPECT_EQ(why({{job}, {a}}), absl::OkStatus());
  EXPECT_EQ(why({{job}, {a, b}}).code(), absl::StatusCode::kDataLoss) << "one slot, two chunks";
  b.ssd = ChunkRecord::Copy{64, true};
  EXPECT_EQ(why({{job}, {a, b}}).code(), absl::StatusCode::kDataLoss) << "no such slot";
  b.ssd.reset();
  EXPECT_EQ(why({{job}, {a, b}}).code(), absl::StatusCode::kDataLoss) << "no home";
  job.stores.push_back(StoreId(3));
  EXPECT_EQ(why({{job}, {a}}).code(), absl::StatusCode::kDataLoss) << "more than its share";
  job.slots_per_store = 32;
  EXPECT_EQ(why({{job}, {a}}).code(), absl::StatusCode::kFailedPrecondition) << "cut otherwise";
}

TEST(RestartTest, AnElasticJobThatTheNextPoolCannotHoldIsLost) {
  EngineOptions options = Kept(SmallHost());
  options.host_capacity = MiB(96);
  options.ssd_capacity = MiB(1024);
  EngineByteHarness node(options);
  node.elastic_ = true;
  const SessionId session = node.Open("job", kResumableFor);
  for (const ChunkId chunk : node.Allocate(session, 60)) node.Fill(session, chunk, {1});
  options.ssd_capacity = MiB(64);
  const std::vector<JobLost> lost = node.DaemonDies(0, options);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].why.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(node.memory_segments(), 0u);
}

TEST(RestartTest, AnElasticJobThatHadNoChunkCanAllocateOne) {
  EngineOptions options = Kept(SmallHost());
  options.host_capacity = MiB(96);
  options.ssd_capacity = MiB(1024);
  EngineByteHarness node(options);
  node.elastic_ = true;
  node.Open("job", kResumableFor);
  node.DaemonDies(0, options);
  EXPECT_EQ(node.Allocate(node.Open("job", kResumableFor), 1).size(), 1u);
}

// A fetch of the same session waits for the chunk still.
TEST(RestartTest, AReleasedChunkIsWholeWhileAnotherFetchNamesIt) {
  const EngineOptions options = Kept(SmallHost());
  EngineByteHarness node(options);
  SessionId session = node.Open("job", kResumableFor);
  const std::vector<ChunkId> chunks = node.Allocate(session, 2);
  node.Fill(session, chunks[0], {7});
  ASSERT_TRUE(node.Fetch(session, chunks[0], Tier::kHost, Access::kWrite).status.ok());
  FetchCall both;
  both.call = CallId(1000);
  both.session = session;
  both.tier = Tier::kHost;
  both.chunks = chunks;
  node.Post(both);
  node.Release(session, chunks[0]);
  node.DaemonDies(0, options);
  session = node.Open("job", kResumableFor);
  EXPECT_EQ(node.Read(session, chunks[0], 1), std::vector<float>{7});
}

TEST(RestartTest, TransientChunksAreGone) {
  EngineOptions options{{MiB(8)}, MiB(32), MiB(128), Limits()};
  options.persistent_jobs = true;
  EngineByteHarness node(options);
  const SessionId session = node.Open("job", std::chrono::hours(1));
  const std::vector<ChunkId> chunks = node.Allocate(session, 2);
  node.Fill(session, chunks[0], {1, 2, 3});
  // Their entries in the table are those of chunks that have a record.
  node.Free(session, chunks[1]);
  AllocateCall allocate{node.Call(), session, 900, 3, ChunkKind::kActivation};
  allocate.undefined = allocate.transient = true;
  allocate.home = Tier::kHost;
  node.Post(allocate);
  const auto transient = std::get<AllocateReply>(node.ReplyTo(allocate.call).value).chunks;
  for (const ChunkId chunk : transient) node.Fill(session, chunk, {4, 5, 6});
  EXPECT_TRUE(node.DaemonDies(0).empty());
  const SessionId resumed = node.Open("job", std::chrono::hours(1));
  EXPECT_EQ(node.Read(resumed, chunks[0], 3), (std::vector<float>{1, 2, 3}));
  for (const ChunkId chunk : transient) {
    const DescribeCall describe{node.Call(), resumed, {chunk}};
    node.Post(describe);
    EXPECT_EQ(node.ReplyTo(describe.call).status.code(), absl::StatusCode::kNotFound);
  }
}

TEST(RestartTest, ATransientChunkIsGoneAlsoWhereItsEntryWasFreedInTheSameEvent) {
  EngineOptions options{{MiB(8)}, MiB(32), EngineByteHarness::kChunk * 8, Limits()};
  options.persistent_jobs = true;
  EngineByteHarness node(options);
  const SessionId session = node.Open("job", std::chrono::hours(1));
  const std::vector<ChunkId> chunks = node.Allocate(session, 8);
  FetchCall fetch{node.Call(), session, Tier::kHost, Access::kRead, {chunks[0]}};
  node.Post(fetch);
  ASSERT_EQ(node.in_flight(), 1u);
  node.Free(session, chunks[0]);
  // It waits for the slot of the chunk that was freed under its transfer, and gets that of another.
  AllocateCall allocate{node.Call(), session, 900, 1, ChunkKind::kActivation};
  allocate.undefined = allocate.transient = true;
  node.Post(allocate);
  ASSERT_FALSE(node.Answered(allocate.call));
  node.Free(session, chunks[1]);
  const ChunkId chunk = std::get<AllocateReply>(node.ReplyTo(allocate.call).value).chunks.at(0);
  ASSERT_EQ(IndexOf(chunk), IndexOf(chunks[1]));
  EXPECT_TRUE(node.DaemonDies(0).empty());
  const SessionId resumed = node.Open("job", std::chrono::hours(1));
  const DescribeCall describe{node.Call(), resumed, {chunk}};
  node.Post(describe);
  EXPECT_EQ(node.ReplyTo(describe.call).status.code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace memtide

// The engine's decisions from the uses that sessions report.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using Kind = StartTransfer::Kind;

class PredictTest : public testing::Test, public EngineHarness {
 protected:
  // Four slots on the device, room for all in the host.
  PredictTest() : PredictTest({{kChunk * 4}, kChunk * 32, Bytes(0), Limits()}) {}
  explicit PredictTest(EngineOptions options) : EngineHarness(std::move(options)) {
    session_ = Open();
    chunks_ = Allocate(session_, 8);
  }

  void Report(std::vector<MomentReport> moments) {
    const ReportCall report{Call(), session_, std::move(moments)};
    Post(report);
    EXPECT_EQ(CodeOf(report.call), absl::StatusCode::kOk);
  }
  static MomentReport Moment(const std::string& name) {
    MomentReport moment;
    moment.phase = Phase::kForward;
    moment.name = name;
    return moment;
  }
  // Fetches, releases and reports the uses, as a client does. Prefetched chunks are on their way.
  void BeginToUse(uint32_t n, Access access = Access::kRead) {
    FetchCall fetch;
    fetch.call = Call();
    fetch.session = session_;
    fetch.tier = tier_;
    fetch.access = access;
    fetch.chunks = {chunks_[n]};
    fetch.moments = {Moment("m" + std::to_string(n))};
    fetch.moments.back().uses = {{chunks_[n], access}};
    Post(fetch);
    FinishTransfers();
    EXPECT_EQ(CodeOf(fetch.call), absl::StatusCode::kOk);
    last_ = std::get<FetchReply>(ReplyTo(fetch.call).value);
    Release(session_, {chunks_[n]});
  }
  void UseChunk(uint32_t n, Access access = Access::kRead) {
    BeginToUse(n, access);
    FinishTransfers();
    Wait(std::chrono::milliseconds(20));
  }
  void EndIteration() {
    MomentReport end;
    end.continues = true;
    end.ends_iteration = true;
    Report({end});
    FinishTransfers();
  }
  void Iterate(Access access = Access::kRead) {
    for (uint32_t n = 0; n < chunks_.size(); ++n) UseChunk(n, access);
    EndIteration();
  }
  bool OnDevice(uint32_t n) {
    DescribeCall describe{Call(), session_, {chunks_[n]}};
    Post(describe);
    return std::get<DescribeReply>(ReplyTo(describe.call).value).chunks[0].on_device;
  }
  // The hints that a fetch of the chunks gets.
  std::vector<ChunkId> HintsOfAFetch(const std::vector<uint32_t>& numbers) {
    FetchCall fetch{Call(), session_};
    fetch.moments = {Moment("all")};
    for (const uint32_t n : numbers) {
      fetch.chunks.push_back(chunks_[n]);
      fetch.moments[0].uses.push_back({chunks_[n], Access::kRead});
    }
    Post(fetch);
    FinishTransfers();
    return std::get<FetchReply>(ReplyTo(fetch.call).value).eviction_hints;
  }
  TraceReply Trace() {
    TraceCall trace;
    trace.call = Call();
    Post(trace);
    return std::get<TraceReply>(ReplyTo(trace.call).value);
  }

  SessionId session_;
  std::vector<ChunkId> chunks_;
  Tier tier_ = Tier::kDevice;
  FetchReply last_;
};

TEST(CostTest, TheEndOfAnIterationCountsForAllChunks) {
  ReportCall report;
  report.moments.emplace_back();
  const uint64_t before = report.Cost();
  report.moments[0].ends_iteration = true;
  EXPECT_EQ(report.Cost(), before + kCostOfAllChunks);
}

TEST_F(PredictTest, ARepeatedScanKeepsMostOfWhatItHasRoomFor) {
  for (int i = 0; i < 3; ++i) Iterate(Access::kWrite);
  const Bytes before = Inspect().counters.host_to_device;
  Iterate(Access::kWrite);
  // LRU would promote all eight. Three of four slots serve again; one and its successor pass
  // through.
  EXPECT_LE(Inspect().counters.host_to_device, before + kChunk * 6);
}

TEST_F(PredictTest, AQuarterOfTheSlotsIsForWhatComesAhead) {
  for (int i = 0; i < 3; ++i) Iterate();
  size_t most = 0;
  for (uint32_t n = 0; n < chunks_.size(); ++n) {
    BeginToUse(n);
    most = std::max(most, transfers_.size());
    FinishTransfers();
  }
  EXPECT_EQ(most, 1u);
}

TEST(PredictForTwoSessionsTest, WhatEachSessionOfAJobReportsIsLearned) {
  EngineHarness node({{kChunk * 4}, kChunk * 32, Bytes(0), Limits()});
  for (uint64_t nth = 1; nth <= 2; ++nth) {
    const SessionId session = node.Open(1000, "job");
    MomentReport moment;
    moment.uses = {{node.Allocate(session, 1)[0], Access::kRead}};
    moment.ends_iteration = true;
    node.Post(ReportCall{node.Call(), session, {moment}});
    EXPECT_EQ(node.Inspect().counters.iterations, nth);
  }
}

// Ranks do the same at the same time.
TEST(PredictForTwoSessionsTest, OfRanksTheFirstIsFollowed) {
  EngineHarness node({{kChunk * 16}, kChunk * 32, Bytes(0), Limits()});
  for (uint32_t rank = 0; rank < 2; ++rank) {
    OpenCall open;
    open.job_name = "job";
    open.rank = rank;
    open.ranks = 2;
    const SessionId session = node.OpenAs(open);
    MomentReport moment;
    moment.uses = {{node.Allocate(session, 1)[0], Access::kRead}};
    moment.ends_iteration = true;
    node.Post(ReportCall{node.Call(), session, {moment}});
    EXPECT_EQ(node.Inspect().counters.iterations, 1u) << rank;
  }
}

// Once they counted as valid when the device was there again, with other memory.
TEST_F(PredictTest, CopiesThatCameAheadToADeviceAreLostWithItAlthoughNobodyLeasesThere) {
  tier_ = Tier::kHost;
  for (int i = 0; i < 3; ++i) Iterate();
  const auto on_device = [this] {
    uint32_t count = 0;
    for (uint32_t n = 0; n < chunks_.size(); ++n) count += OnDevice(n) ? 1 : 0;
    return count;
  };
  ASSERT_GT(on_device(), 0u);
  Post(DeviceState{0, absl::UnavailableError("GPU 0 fell off the bus")});
  FinishTransfers();
  EXPECT_EQ(on_device(), 0u);
  Post(DeviceState{0, absl::OkStatus()});
  Iterate();
}

TEST_F(PredictTest, WhatIsExpectedSoonComesAheadAndDisplacesOnlyWhatIsExpectedLater) {
  for (int i = 0; i < 3; ++i) Iterate(Access::kWrite);
  UseChunk(0);
  UseChunk(1);
  UseChunk(2);
  UseChunk(3);
  EXPECT_TRUE(OnDevice(4)) << "nobody fetched it yet";
  const TraceReply trace = Trace();
  bool prefetched = false;
  for (const TracedMove& move : trace.moves) prefetched |= move.reason == MoveReason::kPrefetch;
  EXPECT_TRUE(prefetched);
}

// Once the call waited on, and was given zeros.
TEST(PredictAtThreeTiersTest, ACallThatWaitsForWhatADeviceHasLostFails) {
  EngineOptions options = ThreeTiers();
  options.user_ssd_per_day = MiB(2400);  // Few writes: what has a copy at the device is dropped.
  EngineHarness node(options);
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 6);
  const auto use = [&](ChunkId chunk, Access access) {
    FetchCall fetch{node.Call(), session, Tier::kHost, access, {chunk}};
    MomentReport moment;
    moment.name = "m" + std::to_string(chunk.value());
    moment.uses = {{chunk, access}};
    fetch.moments = {moment};
    node.Post(fetch);
    node.FinishTransfers();
    if (!node.Answered(fetch.call)) return;  // It waits for the budget.
    node.Release(session, {chunk});
    node.FinishTransfers();
    node.Wait(std::chrono::milliseconds(20));
    node.FinishTransfers();
  };
  const auto on_device_only = [&]() -> absl::optional<ChunkId> {
    for (const ChunkInfo& each : node.Describe(session, chunks)) {
      if (each.on_device && !each.on_host && !each.on_ssd) return each.chunk;
    }
    return absl::nullopt;
  };
  absl::optional<ChunkId> lost;
  for (int iteration = 0; iteration < 20 && !lost.has_value(); ++iteration) {
    for (size_t n = 0; n < chunks.size() && !lost.has_value(); ++n) {
      use(chunks[n], Access::kWrite);
      lost = on_device_only();
    }
    MomentReport end;
    end.continues = end.ends_iteration = true;
    node.Post(ReportCall{node.Call(), session, {end}});
    node.FinishTransfers();
  }
  ASSERT_TRUE(lost.has_value()) << "a chunk has left host memory, as its copy came to the device";
  const CallId fetch = node.Fetch(session, {*lost}, Access::kRead, Tier::kHost);
  ASSERT_FALSE(node.Answered(fetch));
  node.Post(DeviceState{0, absl::UnavailableError("GPU 0 fell off the bus")});
  node.FinishTransfers();
  EXPECT_FALSE(node.ReplyTo(fetch).status.ok());
}

// Four slots of host memory, and room for all on SSD.
class PredictFromSsdTest : public PredictTest {
 protected:
  PredictFromSsdTest() : PredictTest({{}, kChunk * 4, kChunk * 32, Limits()}) {
    tier_ = Tier::kHost;
  }
};

TEST_F(PredictFromSsdTest, NothingIsWrittenBackAheadWhereSlotsAreLeft) {
  for (int i = 0; i < 4; ++i) {
    for (uint32_t n = 0; n < 3; ++n) UseChunk(n, Access::kWrite);
    EndIteration();
  }
  EXPECT_EQ(Inspect().counters.ssd_written, Bytes(0));
}

// It would be written over what the next power cut goes back to.
TEST(PredictForADurableJobTest, WhatIsWrittenAheadLeavesTheSlotsThatASnapshotNames) {
  EngineHarness node({{}, kChunk * 4, kChunk * 32, Limits()});
  OpenCall open;
  open.job_name = "job";
  open.time_to_live = std::chrono::hours(1);
  open.durable_every = 1;
  const CallId opening = node.BeginOpenAs(open);
  const JobId job = std::get<OpenReply>(node.ReplyTo(opening).value).job;
  const SessionId session = node.last_opened();
  const std::vector<ChunkId> chunks = node.Allocate(session, 8);
  std::set<std::pair<StoreId, Bytes>> written;
  const auto finish = [&] {
    for (; !node.transfers_.empty(); node.FinishOne()) {
      const StartTransfer& transfer = node.transfers_.front();
      if (transfer.kind != Kind::kHostToSsd) continue;
      written.insert({transfer.store.store, transfer.store.offset});
    }
  };
  const auto iterate = [&] {
    for (const ChunkId chunk : chunks) {
      FetchCall fetch{node.Call(), session, Tier::kHost, Access::kWrite, {chunk}};
      MomentReport moment;
      moment.name = "m" + std::to_string(chunk.value());
      moment.uses = {{chunk, Access::kWrite}};
      fetch.moments = {moment};
      node.Post(fetch);
      finish();
      node.Release(session, {chunk});
      finish();
      node.Wait(std::chrono::milliseconds(20));
      finish();
    }
    MomentReport end;
    end.continues = end.ends_iteration = true;
    node.Post(ReportCall{node.Call(), session, {end}});
    finish();
  };
  for (int i = 0; i < 3; ++i) iterate();
  CommitCall commit;
  commit.call = node.Call();
  commit.session = session;
  commit.step = 1;
  node.Post(commit);
  finish();
  const Instant saved_at = node.now();
  node.Post(SnapshotSaved{job, absl::OkStatus()});
  ASSERT_EQ(node.CodeOf(commit.call), absl::StatusCode::kOk);
  const auto saved = std::exchange(written, {});
  ASSERT_EQ(saved.size(), chunks.size());
  iterate();
  TraceCall trace;
  trace.call = node.Call();
  node.Post(trace);
  const std::vector<TracedMove> moves = std::get<TraceReply>(node.ReplyTo(trace.call).value).moves;
  EXPECT_TRUE(std::any_of(moves.begin(), moves.end(), [&](const TracedMove& move) {
    return move.reason == MoveReason::kWriteBack && move.start >= saved_at;
  }));
  for (const auto& place : written) EXPECT_EQ(saved.count(place), 0u);
}

TEST_F(PredictFromSsdTest, AStallIsCountedAndTracedByTheTransferThatItWaitedFor) {
  static constexpr Duration kStall = std::chrono::milliseconds(20);
  Report({Moment("first")});  // A trace begins with a moment.
  const auto stall_on = [this](ChunkId chunk) {
    const CallId fetch = Fetch(session_, {chunk}, Access::kWrite, tier_);
    Wait(kStall);
    FinishTransfers();
    EXPECT_EQ(CodeOf(fetch), absl::StatusCode::kOk);
    Release(session_, {chunk});
    return Trace().stalls.back().waited_for;
  };
  EXPECT_EQ(stall_on(chunks_[0]), Tier::kDevice) << "zeros are made in memory";
  EXPECT_EQ(Inspect().counters.stalled_on_copy, kStall);
  for (uint32_t n = 0; n < chunks_.size(); ++n) BeginToUse(n, Access::kWrite);
  const std::vector<ChunkInfo> known = Describe(session_, chunks_);
  const auto left =
      std::find_if(known.begin(), known.end(), [](const ChunkInfo& each) { return !each.on_host; });
  ASSERT_NE(left, known.end());
  EXPECT_EQ(stall_on(left->chunk), Tier::kSsd);
  EXPECT_EQ(Inspect().counters.stalled_on_ssd, kStall);
}

TEST_F(PredictFromSsdTest, APrefetchForWhichCallsBeginToWaitIsExpeditedOnce) {
  Iterate(Access::kWrite);
  for (int i = 0; i < 3; ++i) Iterate();
  uint32_t used = 0;
  while (transfers_.empty() && used < chunks_.size()) {
    BeginToUse(used++);
    Wait(std::chrono::milliseconds(20));
  }
  ASSERT_EQ(transfers_.size(), 1u);
  const StartTransfer prefetch = transfers_[0];
  ASSERT_EQ(prefetch.kind, StartTransfer::Kind::kSsdToHost);
  EXPECT_FALSE(prefetch.awaited);
  awaited_.clear();
  const std::vector<ChunkInfo> known = Describe(session_, chunks_);
  const auto moving =
      std::find_if(known.begin(), known.end(), [](const ChunkInfo& each) { return each.moving; });
  ASSERT_NE(moving, known.end());
  Fetch(session_, {moving->chunk}, Access::kRead, tier_);
  Fetch(session_, {moving->chunk}, Access::kRead, tier_);
  ASSERT_EQ(awaited_.size(), 1u);
  EXPECT_EQ(awaited_[0].transfer, prefetch.transfer);
  FinishTransfers();
}

TEST_F(PredictTest, ASessionIsToldWhichOfItsLeasesAreExpectedLast) {
  Iterate();
  EXPECT_EQ(HintsOfAFetch({0, 1, 2}), std::vector<ChunkId>({chunks_[2], chunks_[1], chunks_[0]}));
}

class LeastRecentlyUsedTest : public PredictTest {
 protected:
  static EngineOptions Options() {
    EngineOptions options{{kChunk * 4}, kChunk * 32, Bytes(0), Limits()};
    options.placement = &LruPolicy();
    return options;
  }
  LeastRecentlyUsedTest() : PredictTest(Options()) {}
};

TEST_F(LeastRecentlyUsedTest, NoLeaseIsSaidToBeExpectedLast) {
  Iterate();
  EXPECT_TRUE(HintsOfAFetch({0, 1, 2}).empty());
}

TEST_F(PredictTest, WhatIsPlannedToStayStaysAndIsAskedForLast) {
  for (int i = 0; i < 4; ++i) Iterate(Access::kWrite);
  const Bytes before = Inspect().counters.host_to_device;
  std::vector<uint32_t> stayed;
  for (uint32_t n = 0; n < 8; ++n) {
    UseChunk(n, Access::kWrite);
    if (OnDevice((n + 4) % 8)) stayed.push_back((n + 4) % 8);
  }
  EndIteration();
  ASSERT_EQ(stayed.size(), 2u) << "of four slots, two are for what is used";
  EXPECT_LE(Inspect().counters.host_to_device, before + kChunk * 6);
  const std::vector<ChunkId> farthest =
      HintsOfAFetch({stayed[0], (stayed[0] + 1) % 8, (stayed[0] + 7) % 8});
  ASSERT_EQ(farthest.size(), 3u);
  EXPECT_EQ(farthest.back(), chunks_[stayed[0]]);
}

TEST_F(PredictTest, AnotherOrderEndsThePlan) {
  for (int i = 0; i < 4; ++i) Iterate(Access::kWrite);
  for (const uint32_t n : {5, 0, 3, 6, 1, 7, 2, 4}) UseChunk(n);
  EndIteration();
  // Without a plan, a chunk with a sooner use displaces one with a later use.
  for (const uint32_t n : {5, 0, 3, 6}) UseChunk(n);
  EXPECT_TRUE(OnDevice(1)) << "nobody fetched it yet";
}

TEST_F(PredictTest, LeasesOfWhatIsExpectedLastAreAskedBackForWhatIsExpectedSooner) {
  for (int i = 0; i < 3; ++i) Iterate(Access::kWrite);
  const CallId held = Fetch(session_, {chunks_[0], chunks_[1], chunks_[2], chunks_[3]});
  FinishTransfers();
  ASSERT_EQ(CodeOf(held), absl::StatusCode::kOk);
  revokes_.clear();
  MomentReport moment = Moment("all");
  for (uint32_t n = 0; n < 4; ++n) moment.uses.push_back({chunks_[n], Access::kRead});
  Report({moment});
  ASSERT_FALSE(revokes_.empty());
  EXPECT_EQ(revokes_[0].count, 0u);
  EXPECT_EQ(revokes_[0].chunks[0], chunks_[3]) << "used just now, so expected last";
  const size_t before = revokes_.size();
  Wait(std::chrono::seconds(1));
  EXPECT_EQ(revokes_.size(), before) << "once";
}

TEST_F(PredictTest, WhatWasEvictedByRequestStaysAwayUntilItIsAskedFor) {
  for (int i = 0; i < 3; ++i) Iterate();
  const EvictCall evict{Call(), session_, Tier::kHost, {chunks_[1]}};
  Post(evict);
  FinishTransfers();
  EXPECT_EQ(CodeOf(evict.call), absl::StatusCode::kOk);
  Report({Moment("again")});
  FinishTransfers();
  EXPECT_FALSE(OnDevice(1));
  UseChunk(1);
  EXPECT_TRUE(OnDevice(1));
}

TEST_F(PredictTest, TheNextVictimIsWrittenBeforeItsRoomIsWanted) {
  for (int i = 0; i < 3; ++i) Iterate(Access::kWrite);
  const TraceReply trace = Trace();
  bool cleaned = false;
  for (const TracedMove& move : trace.moves) cleaned |= move.reason == MoveReason::kWriteBack;
  EXPECT_TRUE(cleaned);
}

TEST_F(PredictTest, WhatComesInAnotherOrderIsSaidSeldomAndCounted) {
  for (int i = 0; i < 3; ++i) Iterate();
  ASSERT_EQ(mispredictions_.size(), 1u) << "the first one is new";
  EXPECT_EQ(mispredictions_[0].expected, 0u);
  EXPECT_EQ(mispredictions_[0].uses, 8u);
  for (uint32_t round = 1; round <= 6; ++round) {
    for (uint32_t n = 0; n < 8; ++n) UseChunk((n * (2 * round + 1) + round) % 8);
    EndIteration();
  }
  const Counters& counters = Inspect().counters;
  EXPECT_EQ(counters.iterations, 9u);
  EXPECT_EQ(counters.iteration_mispredictions, 7u);
  ASSERT_EQ(mispredictions_.size(), 3u) << "number 1, 2 and 4";
  EXPECT_EQ(mispredictions_[2].mispredictions, 4u);
  EXPECT_EQ(mispredictions_[2].expected, 8u);
}

TEST_F(PredictTest, WhatComesAfterAnIterationBelongsToItInTheTrace) {
  Iterate();
  Post(FreeCall{Call(), session_, 1000, {chunks_[7]}});
  UseChunk(0);
  const TraceReply trace = Trace();
  ASSERT_EQ(trace.iteration_ends, std::vector<uint32_t>{8});
  const TracedMoment& last = trace.moments[7];
  ASSERT_EQ(last.uses.size(), 2u);
  EXPECT_EQ(last.uses[1] & 3, static_cast<uint32_t>(TracedOperation::kFree));
  EXPECT_EQ(trace.moments[8].uses.size(), 1u);
}

TEST_F(PredictTest, TheTraceHasTheLatestIterationsWithTheirMovesAndWhatIsExpected) {
  for (int i = 0; i < 12; ++i) Iterate();
  const TraceReply trace = Trace();
  EXPECT_EQ(trace.iteration_ends.size(), 8u);
  EXPECT_EQ(trace.moments.size(), 8u * chunks_.size());
  EXPECT_EQ(trace.moments[3].name, "m3");
  ASSERT_EQ(trace.moments[3].uses.size(), 1u);
  EXPECT_EQ(trace.moments[3].uses[0] & 3, static_cast<uint32_t>(TracedOperation::kRead));
  EXPECT_FALSE(trace.moves.empty());
  ASSERT_EQ(trace.chunks.size(), chunks_.size());
  for (uint32_t n = 0; n < chunks_.size(); ++n) {
    ASSERT_TRUE(trace.chunks[n].next_use_in_moments.has_value());
    EXPECT_EQ(*trace.chunks[n].next_use_in_moments, n + 1);
  }
}

TEST_F(PredictTest, ATraceOfNoOrOfSeveralJobsIsRefused) {
  TraceCall unknown;
  unknown.call = Call();
  unknown.job = JobId(99);
  Post(unknown);
  EXPECT_EQ(CodeOf(unknown.call), absl::StatusCode::kNotFound);
}

TEST_F(PredictTest, MoreMomentsThanACallMayTellAreRefusedAndNothingIsLearnt) {
  const ReportCall report{Call(), session_,
                          std::vector<MomentReport>(Limits().moments_per_call + 1)};
  Post(report);
  EXPECT_EQ(CodeOf(report.call), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Trace().moments.empty());
}

}  // namespace
}  // namespace memtide

// Steps and commits: when sessions see new content, what a step waits for, which calls are refused.
#include <memory>

#include "daemon/engine/testing/step_training.h"

namespace memtide {
namespace {

TEST(StepsTest, AreSeenWhenCommitted) {
  EngineByteHarness node(SmallHost());
  OpenReply opened;
  StepTraining training(&node, node.Open("job", std::chrono::hours(1), &opened));
  EXPECT_EQ(opened.committed_step, 0u);
  training.FillGradient(1);
  const State before = training.Read();
  const CallId step = training.StartStep();
  node.FinishUntilAnswered(step);
  EXPECT_TRUE(node.ReplyTo(step).status.ok()) << node.ReplyTo(step).status;
  EXPECT_EQ(training.Read(), before);
  EXPECT_TRUE(node.ReplyTo(training.Commit(1)).status.ok());
  const State after = training.Read();
  EXPECT_EQ(after[0], GradientOf(1));
  node.Open("job", std::chrono::hours(1), &opened);
  EXPECT_EQ(opened.committed_step, 1u);
  EXPECT_EQ(opened.manifest, "step 1");
}

TEST(StepsTest, UseTheirChunksInTheMomentInWhichTheyBegin) {
  EngineByteHarness node(SmallHost());
  StepTraining training(&node, node.Open("job", std::chrono::hours(1)));
  training.FillGradient(1);
  MomentReport moment;
  moment.name = "update";
  node.Post(ReportCall{node.Call(), training.session(), {moment}});
  node.FinishUntilAnswered(training.StartStep());
  TraceCall trace;
  trace.call = node.Call();
  node.Post(trace);
  const TracedMoment last = std::get<TraceReply>(node.ReplyTo(trace.call).value).moments.back();
  EXPECT_EQ(last.name, "update");
  EXPECT_EQ(last.uses.size(), 7u);
}

TEST(StepsTest, AreCommittedOnceAndInOrder) {
  EngineByteHarness node(SmallHost());
  StepTraining training(&node, node.Open("job", std::chrono::hours(1)));
  training.Step(1);
  const State after = training.Read();
  EXPECT_TRUE(node.ReplyTo(training.Commit(1)).status.ok()) << "its reply may have been lost";
  EXPECT_EQ(training.Read(), after);
  EXPECT_EQ(node.ReplyTo(training.Commit(3)).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(node.ReplyTo(training.Commit(0)).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(training.Read(), after);
}

CallId CommitWith(EngineByteHarness* node, SessionId session, uint64_t step, size_t bytes) {
  CommitCall call{node->Call(), session, step};
  call.manifest = std::string(bytes, 'm');
  node->Post(call);
  return call.call;
}

TEST(StepsTest, ManifestsOfAUserHaveALimitThatIsNamed) {
  EngineOptions options = SmallHost();
  options.host_capacity = EngineByteHarness::kChunk * 48;
  options.persistent_jobs = true;
  options.limits.manifest_bytes_per_uid = Bytes(1000);
  options.limits.manifest_bytes_per_node = Bytes(1500);
  EngineByteHarness node(options);
  node.elastic_ = true;
  const SessionId first = node.Open("first", std::chrono::hours(1));
  const SessionId second = node.Open("second", std::chrono::hours(1));
  const SessionId other = node.OpenRank("first", std::chrono::hours(1), 0, 0, nullptr, 2000);
  const auto status = [&node](CallId call) { return node.ReplyTo(call).status; };
  EXPECT_TRUE(status(CommitWith(&node, first, 1, 600)).ok());
  const absl::Status refused = status(CommitWith(&node, second, 1, 401));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("of uid 1000 would have 1001 B; at most 1000 B"),
            std::string::npos)
      << refused;
  EXPECT_TRUE(status(CommitWith(&node, second, 1, 400)).ok());
  EXPECT_TRUE(status(CommitWith(&node, other, 1, 500)).ok()) << "another user's";
  const absl::Status in_all = status(CommitWith(&node, other, 2, 501));
  EXPECT_EQ(in_all.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(in_all.message().find("of all jobs of the node"), std::string::npos) << in_all;
  // A manifest takes the place of the one before, and those of restored jobs count.
  EXPECT_TRUE(status(CommitWith(&node, first, 2, 600)).ok());
  node.DaemonDies(0);
  const SessionId again = node.Open("second", std::chrono::hours(1));
  EXPECT_EQ(status(CommitWith(&node, again, 2, 401)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(status(CommitWith(&node, again, 2, 100)).ok());
  EXPECT_TRUE(status(CommitWith(&node, again, 3, 400)).ok());
}

TEST(StepsTest, KeepTheOldVersionWhereThatIsWanted) {
  EngineByteHarness node(SmallHost());
  const SessionId session = node.Open("job", std::chrono::hours(1));
  StepTraining training(&node, session);
  training.Step(1);
  const State first = training.Read();
  training.FillGradient(2);
  const CallId step = training.StartStep();
  node.FinishUntilAnswered(step);
  ASSERT_TRUE(node.ReplyTo(training.Commit(2, /*keep_old_content=*/true)).status.ok());
  EXPECT_NE(training.Read(), first);
  EXPECT_EQ(node.Read(session, training.chunks()[4], kTrainedElements), first[0]);
  EXPECT_EQ(node.Read(session, training.chunks()[5], kTrainedElements), first[1]);
}

TEST(StepsTest, WaitForLeasesAndAreNotCommittedUnderThem) {
  EngineByteHarness node(SmallHost());
  const SessionId session = node.Open("job", std::chrono::hours(1));
  StepTraining training(&node, session);
  FetchCall fetch;
  fetch.call = node.Call();
  fetch.session = session;
  fetch.tier = Tier::kHost;
  fetch.access = Access::kWrite;
  fetch.chunks = {training.chunks()[1]};
  node.Post(fetch);
  node.FinishUntilAnswered(fetch.call);
  const CallId step = training.StartStep();
  while (node.in_flight() > 0) node.FinishOne();
  EXPECT_FALSE(node.Answered(step));
  EXPECT_EQ(node.ReplyTo(training.Commit(1)).status.code(), absl::StatusCode::kAborted);
  node.Post(ReleaseCall{node.Call(), session, 1000, {training.chunks()[1]}});
  node.FinishUntilAnswered(step);
  EXPECT_TRUE(node.ReplyTo(step).status.ok());
  EXPECT_TRUE(node.ReplyTo(training.Commit(1)).status.ok());
}

// A lease that begins and ends while the commit is on its way leaves nothing but a version.
TEST(StepsTest, AreNotCommittedOverAWriteSinceTheirVersionsWereRead) {
  EngineByteHarness node(SmallHost());
  const SessionId session = node.Open("job", std::chrono::hours(1));
  StepTraining training(&node, session);
  training.FillGradient(1);
  node.FinishUntilAnswered(training.StartStep());
  CommitCall commit = CommitOf(CallId(), session, training.chunks(), 1);
  const auto code = [&] {
    commit.call = node.Call();
    node.Post(commit);
    return node.ReplyTo(commit.call).status.code();
  };
  const auto read_versions = [&] {
    commit.versions.clear();
    for (const ChunkId chunk : commit.chunks) {
      commit.versions.push_back(node.Describe(session, chunk).version);
    }
  };
  read_versions();
  node.Fill(session, commit.chunks[1], {7});
  EXPECT_EQ(code(), absl::StatusCode::kAborted);
  EXPECT_EQ(node.Read(session, commit.chunks[1], 1), Values{7});
  read_versions();
  EXPECT_EQ(code(), absl::StatusCode::kOk);
  commit.step = 2;
  commit.versions.pop_back();
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument) << "a version for each chunk, or none";
}

TEST(StepsTest, AreRefusedWhereTheyCannotBe) {
  EngineByteHarness node(SmallHost());
  const SessionId session = node.Open("job", std::chrono::hours(1));
  StepTraining training(&node, session);
  StepCall call;
  call.session = session;
  call.chunks = {training.chunks().begin(), training.chunks().begin() + 7};
  call.reads = 4;
  const auto code_of = [&](const CopyWork& work) {
    call.call = node.Call();
    call.work = std::make_shared<const CopyWork>(work);
    node.Post(call);
    return node.ReplyTo(call.call).status.code();
  };
  CopyWork work = StepWork();
  work.copies[0].to = {1, 0};
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument) << "what is read stays";
  work = StepWork();
  work.copies[0].from.offset = EngineByteHarness::kChunk.count() - 4;
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument) << "it does not end in its chunk";
  work.copies[0].from.offset = ~uint64_t{3};
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument) << "offsets do not overflow";
  work = StepWork();
  work.copies[0].bytes = ~uint64_t{0};
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument) << "nor do sizes";
  work = StepWork();
  work.copies.push_back({{0, 0}, {4, 0}, EngineByteHarness::kChunk.count()});
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument) << "each byte is written once";
  work = StepWork();
  work.copies = {{{1, 0}, {9, 0}, 4}};
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument) << "there is no such chunk";
  call.reads = 8;
  EXPECT_EQ(code_of(StepWork()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(training.Read(), State(3, Values(kTrainedElements, 0)));
}

// A script may fetch more while it uses what a step of its own waits for.
TEST(StepsTest, HoldNobodyUpWhileTheyWaitForRoom) {
  EngineByteHarness node(SmallHost());
  const SessionId session = node.Open("job", std::chrono::hours(1));
  StepTraining training(&node, session);
  const std::vector<ChunkId> more = node.Allocate(session, 9);
  const auto fetch = [&](size_t first, size_t count) {
    FetchCall call;
    call.call = node.Call();
    call.session = session;
    call.tier = Tier::kHost;
    call.chunks = {more.begin() + first, more.begin() + first + count};
    node.Post(call);
    return call.call;
  };
  node.FinishUntilAnswered(fetch(0, 6));
  const CallId step = training.StartStep();
  const CallId later = fetch(5, 4);
  node.Post(ReleaseCall{node.Call(), session, 1000, {more[0]}});
  node.FinishUntilAnswered(later);
  EXPECT_TRUE(node.ReplyTo(later).status.ok());
  EXPECT_FALSE(node.Answered(step));
  node.Post(ReleaseCall{node.Call(), session, 1001, {more.begin() + 1, more.end()}});
  node.FinishUntilAnswered(step);
  EXPECT_TRUE(node.ReplyTo(step).status.ok());
}

TEST(StepsTest, EndWithTheirJobAndNotBefore) {
  EngineByteHarness node(SmallHost());
  const SessionId session = node.Open("job", Duration(0));
  StepTraining training(&node, session);
  training.FillGradient(1);
  const CallId step = training.StartStep();
  while (node.in_flight() > 1) node.FinishOne();
  node.Post(ClientGone{session});  // The job has no time to live: its memory goes, after the step.
  while (node.in_flight() > 0) node.FinishOne();
  EXPECT_TRUE(node.Answered(step));
  node.Open("job", Duration(0));
}

// Chunks on their way to SSD, or back, are exchanged as they are: the old, the new, or both.
TEST(StepsTest, AreCommittedWhileChunksMove) {
  const std::vector<State> expected = Expected(SmallHost());
  int moved = 0;
  for (int at = 0; at < 12; ++at) {
    SCOPED_TRACE(at);
    EngineByteHarness node(SmallHost());
    const SessionId session = node.Open("job", std::chrono::hours(1));
    StepTraining training(&node, session);
    training.Step(1);
    training.FillGradient(2);
    const CallId step = training.StartStep();
    node.FinishUntilAnswered(step);
    FetchCall fetch;
    fetch.call = node.Call();
    fetch.session = session;
    fetch.tier = Tier::kHost;
    fetch.access = Access::kWrite;
    fetch.chunks = {training.chunks().begin() + 7, training.chunks().end()};
    node.Post(fetch);
    for (int i = 0; i < at && node.in_flight() > 0; ++i) node.FinishOne();
    moved += node.IsMoving(session, training.chunks(), 1, 7);
    ASSERT_TRUE(node.ReplyTo(training.Commit(2)).status.ok());
    node.FinishUntilAnswered(fetch.call);
    node.Post(ReleaseCall{node.Call(), session, 1000, fetch.chunks});
    ASSERT_EQ(training.Read(), expected[2]);
    training.Step(3);
    ASSERT_EQ(training.Read(), expected[3]);
  }
  EXPECT_GT(moved, 0);
}

// A session writes a shadow while it is written back. The write-back then has the older content,
// and the commit must not give it the new version.
TEST(StepsTest, CommitsCountNoCopyOfOlderContentAsValid) {
  EngineByteHarness node(SmallHost());
  const SessionId session = node.Open("job", std::chrono::hours(1));
  StepTraining training(&node, session);
  training.Step(1);
  training.FillGradient(2);
  node.FinishUntilAnswered(training.StartStep());
  FetchCall others;
  others.call = node.Call();
  others.session = session;
  others.tier = Tier::kHost;
  others.access = Access::kWrite;
  others.chunks = {training.chunks().begin() + 7, training.chunks().end()};
  node.Post(others);
  size_t moving = 4;
  const auto shadow_moves = [&] {
    for (moving = 4; moving < 7; ++moving) {
      if (node.IsMoving(session, training.chunks(), moving, moving + 1)) return true;
    }
    return false;
  };
  while (!shadow_moves() && node.in_flight() > 0) node.FinishOne();
  ASSERT_LT(moving, 7u) << "no shadow is written back";
  node.Fill(session, training.chunks()[moving], {7});
  ASSERT_TRUE(node.IsMoving(session, training.chunks(), moving, moving + 1));
  const size_t begun = node.in_flight();
  ASSERT_TRUE(node.ReplyTo(training.Commit(2)).status.ok());
  for (size_t i = 0; i < begun; ++i) node.FinishOne();  // Newer transfers stand behind them.
  EXPECT_FALSE(node.Describe(session, training.chunks()[moving - 3]).on_ssd);
}

TEST(StepsTest, ReadNoChunkWhoseWriterDied) {
  EngineByteHarness node(SmallHost());
  SessionId session = node.Open("job", std::chrono::hours(1));
  StepTraining training(&node, session);
  ASSERT_TRUE(node.Fetch(session, training.chunks()[0], Tier::kHost, Access::kWrite).status.ok());
  node.Post(ClientGone{session});
  training.GoOnIn(node.Open("job", std::chrono::hours(1)));
  const CallId step = training.StartStep();
  node.FinishUntilAnswered(step);
  EXPECT_EQ(node.ReplyTo(step).status.code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace memtide

// Snapshots of a durable job: when they are saved, what they hold, and what a failure leaves.
#include <vector>

#include "daemon/engine/testing/durable_node.h"
#include "daemon/engine/testing/step_training.h"

namespace memtide {
namespace {

// Steps 1 and 2 of a durable job. Returns the commit of the second one, which waits for its
// snapshot.
CallId CommitUntilItSaves(DurableNode& node, StepTraining& training) {
  training.Step(1);
  training.FillGradient(2);
  const CallId step = training.StartStep();
  node.FinishUntilAnswered(step);
  const CallId commit = training.Commit(2);
  for (int i = 0; i < 100 && !node.SavesNow(); ++i) node.Advance();
  EXPECT_TRUE(node.SavesNow() && !node.Answered(commit));
  return commit;
}

TEST(SnapshotsOfOneJobTest, AFailureIsTheAnswerOfTheCommitWhichMayBeCalledAgain) {
  DurableNode node(SmallHost());
  StepTraining training(&node, node.OpenDurable("job", 1));
  const CallId commit = CommitUntilItSaves(node, training);
  node.FinishOne(absl::InternalError("fsync failed with EIO"));
  const absl::Status status = node.ReplyTo(commit).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(),
            "step 2 is committed, but not on stable storage: fsync failed with EIO");
  const CallId again = training.Commit(2);
  EXPECT_FALSE(node.Answered(again));
  node.FinishUntilAnswered(again);
  EXPECT_TRUE(node.ReplyTo(again).status.ok());
  ExpectAfterPowerCut(node, training, 0, 2);
}

// The script writes its chunks until they have left for SSD again.
void WriteAll(DurableNode& node, StepTraining& training) {
  for (int round = 0; round < 2; ++round) {
    for (const ChunkId chunk : training.chunks()) {
      node.Fill(training.session(), chunk, {99, 98, 97});
    }
    training.Displace();
    for (int i = 0; i < 30; ++i) node.Advance();
  }
}

// A failed save, and then writes of the script.
void FailAndGoOn(DurableNode& node, StepTraining& training, const absl::Status& failure) {
  CommitUntilItSaves(node, training);
  node.FinishOne(failure);
  WriteAll(node, training);
}

TEST(SnapshotsOfOneJobTest, ASecondPowerCutFindsTheSameStep) {
  DurableNode node(SmallHost());
  StepTraining training(&node, node.OpenDurable("job", 1));
  training.Step(1);
  ExpectAfterPowerCut(node, training, 0, 1);
  WriteAll(node, training);
  ExpectAfterPowerCut(node, training, 1, 1);
}

TEST(SnapshotsOfOneJobTest, AFailureLeavesTheLastSnapshotAsItWas) {
  for (const absl::Status& failure : {absl::InternalError("EIO"), absl::UnknownError("EIO")}) {
    DurableNode node(SmallHost());
    StepTraining training(&node, node.OpenDurable("job", 1));
    FailAndGoOn(node, training, failure);
    ExpectAfterPowerCut(node, training, 1, 1);
  }
}

TEST(SnapshotsOfOneJobTest, ASnapshotThatMayBeThereStaysAsItWas) {
  DurableNode node(SmallHost());
  StepTraining training(&node, node.OpenDurable("job", 1));
  node.saves_although_it_fails_ = true;
  FailAndGoOn(node, training, absl::UnknownError("the directory was not flushed"));
  ExpectAfterPowerCut(node, training, 1, 2);
}

// With two slots for each chunk and no more, the two that may be there have all of them.
TEST(SnapshotsOfOneJobTest, ASnapshotThatMayBeThereIsSavedAgainBeforeTheNext) {
  EngineOptions options = SmallHost();
  options.ssd_capacity = EngineByteHarness::kChunk * 2 * 13;
  DurableNode node(options);
  StepTraining training(&node, node.OpenDurable("job", 1));
  FailAndGoOn(node, training, absl::UnknownError("the directory was not flushed"));
  // Nothing tells of the same snapshot whether it is there, until it is saved.
  const CallId commit = training.Commit(2);
  node.FinishOne(absl::InternalError("EIO"));
  EXPECT_EQ(node.ReplyTo(commit).status.code(), absl::StatusCode::kInternal);
  training.Step(3);
  EXPECT_TRUE(node.PowerCut(1).empty());
  OpenReply opened;
  node.OpenDurable("job", 1, &opened);
  EXPECT_EQ(opened.committed_step, 3u);
}

// It keeps its slots from a job that writes its chunks in place, which commits no more until then.
TEST(SnapshotsOfOneJobTest, ASnapshotThatMayBeThereIsSavedAgainWithoutACommit) {
  DurableNode node(SmallHost());
  StepTraining training(&node, node.OpenDurable("job", 1));
  CommitUntilItSaves(node, training);
  node.FinishOne(absl::UnknownError("the directory was not flushed"));
  node.Wait(std::chrono::seconds(59));
  EXPECT_FALSE(node.SavesNow());
  node.Post(RenewCall{node.Call(), training.session()});
  node.Wait(std::chrono::seconds(2));
  EXPECT_TRUE(node.SavesNow());
  node.FinishOne();
  ExpectAfterPowerCut(node, training, 0, 2);
}

// A drive that has failed a flush may have lost what was written, and take the next flush.
TEST(SnapshotsOfOneJobTest, AfterAFailureItIsWrittenAgain) {
  DurableNode node(SmallHost());
  StepTraining training(&node, node.OpenDurable("job", 1));
  CommitUntilItSaves(node, training);
  const ChunkId parameter = training.chunks()[1];
  const ChunkInfo before = node.Describe(training.session(), parameter);
  ASSERT_TRUE(before.on_host && before.on_ssd);
  node.FinishOne(absl::InternalError("EIO"));
  EXPECT_FALSE(node.Describe(training.session(), parameter).on_ssd);
}

TEST(SnapshotsOfOneJobTest, ACommitWaitsForADriveNoLongerThanAnyCall) {
  DurableNode node(SmallHost());
  StepTraining training(&node, node.OpenDurable("job", 1));
  const CallId commit = CommitUntilItSaves(node, training);
  // The session is renewed meanwhile, as clients do.
  const Duration period = Limits().session_lease / 2;
  for (Duration waited{0}; waited < Limits().max_wait; waited += period) {
    ASSERT_FALSE(node.Answered(commit));
    node.Wait(period);
    node.Post(RenewCall{node.Call(), training.session()});
  }
  node.Wait(period);
  EXPECT_EQ(node.ReplyTo(commit).status.code(), absl::StatusCode::kDeadlineExceeded);
  // The same snapshot answers the next call.
  const CallId again = training.Commit(2);
  node.FinishOne();
  EXPECT_TRUE(node.ReplyTo(again).status.ok());
}

TEST(SnapshotsOfOneJobTest, ASessionThatEndsWaitsNoMoreAndItsStepIsSaved) {
  DurableNode node(SmallHost());
  const SessionId session = node.OpenDurable("job", 1);
  StepTraining training(&node, session);
  const CallId commit = CommitUntilItSaves(node, training);
  node.Post(ClientGone{session});
  EXPECT_EQ(node.ReplyTo(commit).status.code(), absl::StatusCode::kUnavailable);
  node.FinishOne();
  EXPECT_EQ(node.saved().begin()->second.job.committed_step, 2u);
}

TEST(SnapshotsOfOneJobTest, ADrainIsAnsweredWhenTheLastSnapshotIsSaved) {
  DurableNode node(SmallHost());
  StepTraining training(&node, node.OpenDurable("job", 1));
  CommitUntilItSaves(node, training);
  const CallId drain = node.Call();
  node.Post(DrainCall{drain});
  EXPECT_FALSE(node.Answered(drain));
  node.FinishOne();
  EXPECT_TRUE(node.Answered(drain));
}

TEST(SnapshotsOfOneJobTest, TheLastStepsAreSavedLaterWhereTheDriveHasFailed) {
  DurableNode node(SmallHost());
  const SessionId session = node.OpenDurable("job", 2);
  StepTraining training(&node, session);
  training.Step(1);
  node.Post(CloseCall{node.Call(), session});
  for (int i = 0; i < 100 && !node.SavesNow(); ++i) node.Advance();
  ASSERT_TRUE(node.SavesNow());
  node.FinishOne(absl::InternalError("EIO"));
  node.Wait(std::chrono::seconds(1));
  for (int i = 0; i < 100; ++i) node.Advance();
  EXPECT_TRUE(node.saved().empty()) << "not at once";
  node.Wait(std::chrono::minutes(1));
  for (int i = 0; i < 100; ++i) node.Advance();
  ExpectAfterPowerCut(node, training, 1, 1);
}

TEST(SnapshotsOfOneJobTest, TheStepsAfterTheLastDurableOneAreSavedWhenTheScriptEnds) {
  DurableNode node(SmallHost());
  const SessionId session = node.OpenDurable("job", 2);
  StepTraining training(&node, session);
  training.Step(1);
  node.Post(CloseCall{node.Call(), session});
  for (int i = 0; i < 100; ++i) node.Advance();
  ExpectAfterPowerCut(node, training, 1, 1);
}

// The snapshot that is being saved when the script ends has the step before the last one.
TEST(SnapshotsOfOneJobTest, AStepThatIsCommittedWhileAnotherIsSavedIsSavedAtTheEnd) {
  DurableNode node(SmallHost());
  const SessionId session = node.OpenDurable("job", 2);
  StepTraining training(&node, session);
  const CallId commit = CommitUntilItSaves(node, training);
  node.Post(CommitCall{node.Call(), session, 3});
  node.Post(ClientGone{session});
  EXPECT_EQ(node.ReplyTo(commit).status.code(), absl::StatusCode::kUnavailable);
  for (int i = 0; i < 100; ++i) node.Advance();
  EXPECT_EQ(node.saved().begin()->second.job.committed_step, 3u);
}

// A commit that waits for the drive does not wait for chunks that the script frees or writes
// meanwhile.
TEST(SnapshotsOfOneJobTest, ChunksThatAreFreedOrWrittenMeanwhileAreNotWaitedFor) {
  EngineOptions options = SmallHost();
  options.host_capacity = EngineByteHarness::kChunk * 20;
  DurableNode node(options);
  const SessionId session = node.OpenDurable("job", 1);
  StepTraining training(&node, session);
  training.FillGradient(1);
  const CallId step = training.StartStep();
  node.FinishUntilAnswered(step);
  node.Fill(session, training.chunks()[7], {1});
  node.Fill(session, training.chunks()[8], {2});
  const CallId commit = training.Commit(1);
  ASSERT_FALSE(node.Answered(commit));
  node.Free(session, training.chunks()[7]);
  ASSERT_TRUE(node.Fetch(session, training.chunks()[8], Tier::kHost, Access::kWrite).status.ok());
  node.FinishUntilAnswered(commit);
  EXPECT_TRUE(node.ReplyTo(commit).status.ok());
  node.PowerCut(0);
  const SessionId resumed = node.OpenDurable("job", 1);
  EXPECT_EQ(node.Fetch(resumed, training.chunks()[8], Tier::kHost, Access::kRead).status.code(),
            absl::StatusCode::kDataLoss)
      << "its lease was never released";
  EXPECT_EQ(node.Fetch(resumed, training.chunks()[7], Tier::kHost, Access::kRead).status.code(),
            absl::StatusCode::kNotFound);
}

TEST(SnapshotsOfOneJobTest, AJobThatEndsIsNotRestored) {
  DurableNode node(SmallHost());
  const SessionId session = node.OpenDurable("job", 1);
  StepTraining training(&node, session);
  training.Step(1);
  ASSERT_EQ(node.saved().size(), 1u);
  EndJobCall end;
  end.call = node.Call();
  end.job = node.saved().begin()->first;
  node.Post(end);
  EXPECT_TRUE(node.saved().empty());
  node.PowerCut(0);
  OpenReply opened;
  node.OpenDurable("job", 1, &opened);
  EXPECT_EQ(opened.committed_step, 0u);
}

TEST(SnapshotsOfOneJobTest, WhatAPartHasYetToWriteIsLost) {
  DurableNode node(SmallHost());
  StepTraining training(&node, node.OpenDurable("job", 1));
  training.FillGradient(1);
  training.StartStep();
  CommitCall commit{node.Call(), training.session(), 1};
  node.Post(commit);
  // The part waits for older transfers, which do not end.
  while (!node.Answered(commit.call)) node.FinishNewest();
  EXPECT_TRUE(node.PowerCut(0).empty());
  const SessionId next = node.OpenDurable("job", 1);
  const Reply read = node.Fetch(next, training.chunks()[4], Tier::kHost, Access::kRead);
  EXPECT_EQ(read.status.code(), absl::StatusCode::kDataLoss);
}

TEST(SnapshotsOfOneJobTest, GradientsAreNotWritten) {
  DurableNode node(SmallHost());
  const SessionId session = node.OpenDurable("job", 1);
  StepTraining training(&node, session);
  AllocateCall allocate{node.Call(), session, 900, 1, ChunkKind::kGradient};
  node.Post(allocate);
  const ChunkId gradient = node.Finish<AllocateReply>(allocate.call).chunks.at(0);
  node.Fill(session, gradient, {5});
  training.Step(1);
  node.PowerCut(0);
  const SessionId resumed = node.OpenDurable("job", 1);
  EXPECT_EQ(node.Fetch(resumed, gradient, Tier::kHost, Access::kRead).status.code(),
            absl::StatusCode::kDataLoss);
  node.Fill(resumed, gradient, {6});
  EXPECT_EQ(node.Read(resumed, gradient, 1), Values{6});
}

TEST(SnapshotsOfOneJobTest, AJobHasASecondSlotForEachChunk) {
  EngineOptions options = SmallHost();
  options.ssd_capacity = EngineByteHarness::kChunk * 20;
  DurableNode node(options);
  OpenReply opened;
  const SessionId session = node.OpenDurable("job", 1, &opened);
  EXPECT_EQ(opened.max_chunks, 10u);
  EXPECT_EQ(node.Allocate(session, 10).size(), 10u);
  const AllocateCall more{node.Call(), session, 900, 1};
  node.Post(more);
  node.FinishUntilAnswered(more.call);
  EXPECT_EQ(node.ReplyTo(more.call).status.message(),
            "requested 1 chunks of 2 MiB; the job's ssd share holds 10 (half of its slots, as the "
            "job is durable), of which 10 are used");
}

TEST(SnapshotsOfOneJobTest, AJobThatDoesNotFitStaysForALaterDaemon) {
  DurableNode node(SmallHost());
  StepTraining training(&node, node.OpenDurable("job", 1));
  training.Step(1);
  EngineOptions smaller = SmallHost();
  smaller.ssd_capacity = EngineByteHarness::kChunk * 32;
  const std::vector<JobLost> lost = node.PowerCut(0, smaller);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_TRUE(lost[0].is_saved);
  EXPECT_EQ(node.memory_segments(), 0u);
  EXPECT_EQ(node.saved().size(), 1u);
  ExpectAfterPowerCut(node, training, 0, 1);
}

// The records name host memory that the next daemon has not. Once, the stores that they name were
// dropped although the snapshot names them, too.
TEST(SnapshotsOfOneJobTest, AJobWhoseRecordsNoLongerFitStaysForALaterDaemon) {
  EngineOptions options = SmallHost();
  options.persistent_jobs = true;
  DurableNode node(options);
  StepTraining training(&node, node.OpenDurable("job", 2));
  for (uint64_t step = 1; step <= 3; ++step) training.Step(step);
  EngineOptions smaller = options;
  smaller.host_capacity = EngineByteHarness::kChunk * 8;
  const std::vector<JobLost> lost = node.DaemonDies(0, smaller);
  ASSERT_EQ(lost.size(), 2u);
  EXPECT_TRUE(lost[0].is_saved);
  EXPECT_EQ(lost[0].committed_step, 2u);
  EXPECT_EQ(lost[1].committed_step, 3u);
  EXPECT_EQ(lost[1].goes_on_at, absl::nullopt);
  EXPECT_EQ(node.memory_segments(), 0u);
  ExpectAfterPowerCut(node, training, 0, 2);
}

TEST(SnapshotsOfOneJobTest, AnElasticJobWhoseRecordsNoLongerFitGoesOnFromItsSnapshot) {
  EngineOptions options = SmallHost();
  options.host_capacity = MiB(96);
  options.ssd_capacity = MiB(1024);
  options.persistent_jobs = true;
  DurableNode node(options);
  node.elastic_ = true;
  const SessionId session = node.OpenDurable("job", 2);
  StepTraining training(&node, session);
  for (const ChunkId chunk : node.Allocate(session, 20)) node.Fill(session, chunk, {1});
  for (uint64_t step = 1; step <= 3; ++step) training.Step(step);
  options.host_capacity = EngineByteHarness::kChunk * 9;
  std::vector<JobLost> lost = node.DaemonDies(0, options);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].committed_step, 3u);
  EXPECT_EQ(lost[0].goes_on_at, 2u) << lost[0].why;
  OpenReply opened;
  training.GoOnIn(node.OpenDurable("job", 2, &opened));
  EXPECT_EQ(opened.committed_step, 2u);
  const State expected = Expected(SmallHost())[2];
  EXPECT_EQ(training.Read(), expected);
  // The journal has it as it is now.
  EXPECT_TRUE(node.DaemonDies(0, options).empty());
  training.GoOnIn(node.OpenDurable("job", 2, &opened));
  EXPECT_EQ(opened.committed_step, 2u);
  EXPECT_EQ(training.Read(), expected);
}

// Two jobs that have the same chunks: one of them was not restored for a while.
TEST(SnapshotsOfOneJobTest, ASnapshotWhoseChunksAnotherJobHasStays) {
  DurableNode node(SmallHost());
  StepTraining training(&node, node.OpenDurable("job", 1));
  training.Step(1);
  Restore restore;
  restore.snapshots = {node.saved().begin()->second, node.saved().begin()->second};
  restore.snapshots[1].job.job = JobId(77);
  restore.snapshots[1].job.name = "other";
  restore.snapshots[1].job.stores = {StoreId(900)};
  Engine engine(SmallHost());
  std::vector<Effect> effects;
  engine.Handle(Instant(std::chrono::seconds(1)), restore, &effects);
  engine.CheckInvariants();
  std::vector<JobLost> lost;
  for (const Effect& effect : effects) {
    EXPECT_FALSE(std::holds_alternative<DropSnapshot>(effect));
    if (const auto* one = std::get_if<JobLost>(&effect)) lost.push_back(*one);
  }
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].job_name, "other");
  EXPECT_TRUE(lost[0].is_saved);
  EXPECT_EQ(lost[0].why.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SnapshotsOfOneJobTest, WhatCannotBeDurableIsRefused) {
  const auto why = [](const EngineOptions& options, const OpenCall& open) {
    DurableNode node(options);
    OpenCall call = open;
    call.call = node.Call();
    call.session = SessionId(1);
    call.chunk_size = EngineByteHarness::kChunk;
    call.durable_every = 3;
    node.Post(ClientConnected{call.session, 1000, 1});
    node.Post(call);
    node.FinishUntilAnswered(call.call);
    return node.ReplyTo(call.call).status;
  };
  OpenCall open;
  open.job_name = "job";
  open.time_to_live = std::chrono::hours(1);
  EXPECT_TRUE(why(SmallHost(), open).ok());
  EngineOptions no_ssd = SmallHost();
  no_ssd.ssd_capacity = Bytes(0);
  EXPECT_EQ(why(no_ssd, open).message(),
            "durable_every is 3: to be durable, a job needs an SSD pool, which this node has not");
  open.time_to_live = Duration(0);
  EXPECT_EQ(why(SmallHost(), open).code(), absl::StatusCode::kInvalidArgument);
  open.job_name = "";
  EXPECT_EQ(why(SmallHost(), open).code(), absl::StatusCode::kInvalidArgument);
}

TEST(SnapshotsOfOneJobTest, AJobThatWasMadeWithoutRoomForItIsNotDurableLater) {
  DurableNode node(SmallHost());
  node.Open("job", std::chrono::hours(1));
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(900);
  open.chunk_size = EngineByteHarness::kChunk;
  open.job_name = "job";
  open.time_to_live = std::chrono::hours(1);
  open.durable_every = 1;
  node.Post(ClientConnected{open.session, 1000, 1});
  node.Post(open);
  EXPECT_EQ(node.ReplyTo(open.call).status.code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace memtide

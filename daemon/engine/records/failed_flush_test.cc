// A drive that fails a flush may have lost what was written, and take the next flush: what no other
// place has is read, and written again, before a commit is durable.
#include "daemon/engine/testing/durable_node.h"

namespace memtide {
namespace {

// Step 2 is committed, its parameter is on SSD alone, and a drive that does not tell it again has
// lost it. So are `others`, which were written since step 1.
void LoseAWrite(DurableNode& node, StepTraining& training,
                const std::vector<ChunkId>& others = {}) {
  training.Step(1);
  for (const ChunkId other : others) node.Fill(training.session(), other, {1});
  training.FillGradient(2);
  node.FinishUntilAnswered(training.StartStep());
  training.Displace();
  const ChunkInfo made = node.Describe(training.session(), training.chunks()[4]);
  EXPECT_TRUE(made.on_ssd && !made.on_host);
  node.flush_ = absl::InternalError("EIO");
  const CallId failed = training.Commit(2);
  node.FinishUntilAnswered(failed);
  EXPECT_EQ(node.ReplyTo(failed).status.code(), absl::StatusCode::kInternal);
  node.flush_ = absl::OkStatus();
}

TEST(FailedFlushTest, TheOnlyCopyIsReadAndWrittenAgain) {
  DurableNode node(SmallHost());
  StepTraining training(&node, node.OpenDurable("job", 1));
  LoseAWrite(node, training);
  const CallId again = training.Commit(2);
  node.FinishUntilAnswered(again);
  EXPECT_TRUE(node.ReplyTo(again).status.ok());
  ExpectAfterPowerCut(node, training, 0, 2);
}

// Chunks that are read, and the next in turn, end before they are written.
TEST(FailedFlushTest, WhoIsFreedPassesItsTurnOn) {
  DurableNode node(SmallHost());
  const SessionId session = node.OpenDurable("job", 1);
  std::vector<ChunkId> others = node.Allocate(session, 9);  // They have the first turns.
  StepTraining training(&node, session);
  LoseAWrite(node, training, others);
  const CallId again = training.Commit(2);
  others.resize(5);
  node.Post(FreeCall{node.Call(), training.session(), 1000, others});
  node.FinishUntilAnswered(again);
  EXPECT_TRUE(node.ReplyTo(again).status.ok());
  ExpectAfterPowerCut(node, training, 0, 2);
}

TEST(FailedFlushTest, TheNextDaemonReadsAndWritesItAgain) {
  EngineOptions options = SmallHost();
  options.persistent_jobs = true;
  DurableNode node(options);
  StepTraining training(&node, node.OpenDurable("job", 1));
  LoseAWrite(node, training);
  EXPECT_TRUE(node.DaemonDies(0).empty());
  training.GoOnIn(node.OpenDurable("job", 1));
  const CallId again = training.Commit(2);
  node.FinishUntilAnswered(again);
  EXPECT_TRUE(node.ReplyTo(again).status.ok());
  ExpectAfterPowerCut(node, training, 0, 2);
}

TEST(FailedFlushTest, AnOnlyCopyThatCannotBeReadIsTheAnswer) {
  DurableNode node(SmallHost());
  StepTraining training(&node, node.OpenDurable("job", 1));
  LoseAWrite(node, training);
  const CallId again = training.Commit(2);
  int reads = 0;
  for (int i = 0; i < 1000 && !node.Answered(again); ++i) {
    if (!node.ReadsNow()) {
      node.Advance();
      continue;
    }
    ++reads;
    node.FinishOne(absl::DataLossError("the bytes are not those that were written"));
  }
  const absl::Status status = node.ReplyTo(again).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("step 2 is committed, but not on stable storage: chunk"),
            absl::string_view::npos);
  EXPECT_LE(reads, 4);
  // The next try is later, so that the daemon may end.
  for (int i = 0; i < 100 && node.in_flight() > 0; ++i) node.FinishOne();
  const CallId drain = node.Call();
  node.Post(DrainCall{drain});
  node.Wait(std::chrono::seconds(2));
  EXPECT_TRUE(node.Answered(drain));
  // The step before is still there.
  ExpectAfterPowerCut(node, training, 0, 1);
}

}  // namespace
}  // namespace memtide

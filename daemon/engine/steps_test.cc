// Steps and their publishing, on bytes: whatever dies or fails, at any I/O, the job is at a step or
// at the one before, and to make a step again gives the same bits.
#include <limits>
#include <memory>

#include "daemon/engine/byte_node.h"

namespace memtide {
namespace {

constexpr size_t kElements = 8;
constexpr uint64_t kSteps = 3;
using Values = std::vector<float>;
using State = std::vector<Values>;  // Parameter, momentum, variance.

// Host memory holds hardly more than one step's chunks, so that they go to SSD and come back.
EngineOptions SmallHost() {
  return {Bytes(0), ByteNode::kChunk * 9, ByteNode::kChunk * 64, Limits()};
}
EngineOptions WithDevice() {
  return {ByteNode::kChunk * 4, ByteNode::kChunk * 9, ByteNode::kChunk * 64, Limits()};
}

optimizer::Work AdamWork(uint64_t step) {
  optimizer::Work work;
  optimizer::AdamOptions adam;
  adam.lr = 0.5;
  work.rule = adam;
  work.step = step;
  optimizer::Piece piece;
  piece.elements = kElements;
  piece.gradient = {0, 0};
  piece.parameter = {1, 0};
  piece.new_parameter = {4, 0};
  piece.states = {optimizer::Place{2, 0}, optimizer::Place{3, 0}, absl::nullopt};
  piece.new_states = {optimizer::Place{5, 0}, optimizer::Place{6, 0}, absl::nullopt};
  work.pieces = {piece};
  return work;
}

Values GradientOf(uint64_t step) {
  Values gradient;
  for (size_t i = 0; i < kElements; ++i) {
    gradient.push_back(0.25f * static_cast<float>(step) - 0.1f * static_cast<float>(i));
  }
  return gradient;
}

// One parameter's chunks, and what trains it.
class Training {
 public:
  Training(ByteNode* node, SessionId session) : node_(node), session_(session) {
    chunks_ = node->Allocate(session, 13);
  }

  // A fresh session of the job goes on.
  void GoOnIn(SessionId session) { session_ = session; }

  CallId StartStep(uint64_t step, Duration deadline = Duration(0)) {
    StepCall call;
    call.call = node_->Call();
    call.session = session_;
    call.chunks = {chunks_.begin(), chunks_.begin() + 7};
    call.reads = 4;
    call.work = std::make_shared<const optimizer::Work>(AdamWork(step));
    call.deadline = deadline;
    node_->Post(call);
    return call.call;
  }
  CallId Publish(uint64_t step, bool keep = false) {
    PublishCall call;
    call.call = node_->Call();
    call.session = session_;
    call.step = step;
    call.chunks = {chunks_[1], chunks_[2], chunks_[3]};
    call.fresh = {chunks_[4], chunks_[5], chunks_[6]};
    call.keep = keep;
    call.note = "step " + std::to_string(step);
    node_->Post(call);
    return call.call;
  }
  void FillGradient(uint64_t step) { node_->Fill(session_, chunks_[0], GradientOf(step)); }
  // Needs host memory for something else, so that what is there leaves.
  void Displace() {
    for (size_t i = 7; i < 13; ++i) node_->Fill(session_, chunks_[i], {1});
  }
  // The whole step, with everything going well.
  void Step(uint64_t step) {
    FillGradient(step);
    Displace();
    const CallId made = StartStep(step);
    node_->FinishUntilAnswered(made);
    ASSERT_TRUE(node_->ReplyTo(made).status.ok()) << node_->ReplyTo(made).status;
    Displace();
    const CallId published = Publish(step);
    ASSERT_TRUE(node_->ReplyTo(published).status.ok()) << node_->ReplyTo(published).status;
  }
  State Read() {
    State state;
    for (size_t i = 1; i < 4; ++i) {
      state.push_back(node_->Read(session_, chunks_[i], kElements));
    }
    return state;
  }
  const std::vector<ChunkId>& chunks() const { return chunks_; }

 private:
  ByteNode* const node_;
  SessionId session_;
  std::vector<ChunkId> chunks_;
};

// The job's state after each step, from 0 on, with nothing going wrong.
std::vector<State> Expected(const EngineOptions& options) {
  ByteNode node(options);
  Training training(&node, node.Open("job", std::chrono::hours(1)));
  std::vector<State> states = {training.Read()};
  for (uint64_t step = 1; step <= kSteps; ++step) {
    training.Step(step);
    states.push_back(training.Read());
  }
  return states;
}

TEST(StepsTest, AreMadeAndSeenWhenPublished) {
  ByteNode node(SmallHost());
  OpenReply opened;
  Training training(&node, node.Open("job", std::chrono::hours(1), &opened));
  EXPECT_EQ(opened.published_step, 0u);
  training.FillGradient(1);
  const State before = training.Read();
  const CallId step = training.StartStep(1);
  node.FinishUntilAnswered(step);
  EXPECT_TRUE(node.ReplyTo(step).status.ok()) << node.ReplyTo(step).status;
  EXPECT_EQ(training.Read(), before);
  EXPECT_TRUE(node.ReplyTo(training.Publish(1)).status.ok());
  const State after = training.Read();
  // Adam's first step goes lr against the sign of the gradient.
  EXPECT_NEAR(after[0][0], -0.5, 1e-5);
  EXPECT_NEAR(after[0][7], 0.5, 1e-5);
  node.Open("job", std::chrono::hours(1), &opened);
  EXPECT_EQ(opened.published_step, 1u);
  EXPECT_EQ(opened.note, "step 1");
}

TEST(StepsTest, ArePublishedOnceAndInOrder) {
  ByteNode node(SmallHost());
  Training training(&node, node.Open("job", std::chrono::hours(1)));
  training.Step(1);
  const State after = training.Read();
  EXPECT_TRUE(node.ReplyTo(training.Publish(1)).status.ok()) << "its reply may have been lost";
  EXPECT_EQ(training.Read(), after);
  EXPECT_EQ(node.ReplyTo(training.Publish(3)).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(node.ReplyTo(training.Publish(0)).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(training.Read(), after);
}

TEST(StepsTest, KeepTheOldVersionWhereThatIsWanted) {
  ByteNode node(SmallHost());
  const SessionId session = node.Open("job", std::chrono::hours(1));
  Training training(&node, session);
  training.Step(1);
  const State first = training.Read();
  training.FillGradient(2);
  const CallId step = training.StartStep(2);
  node.FinishUntilAnswered(step);
  ASSERT_TRUE(node.ReplyTo(training.Publish(2, /*keep=*/true)).status.ok());
  EXPECT_NE(training.Read(), first);
  EXPECT_EQ(node.Read(session, training.chunks()[4], kElements), first[0]);
  EXPECT_EQ(node.Read(session, training.chunks()[5], kElements), first[1]);
}

TEST(StepsTest, WaitForLeasesAndAreNotPublishedUnderThem) {
  ByteNode node(SmallHost());
  const SessionId session = node.Open("job", std::chrono::hours(1));
  Training training(&node, session);
  FetchCall fetch;
  fetch.call = node.Call();
  fetch.session = session;
  fetch.tier = Tier::kHost;
  fetch.access = Access::kWrite;
  fetch.chunks = {training.chunks()[1]};
  node.Post(fetch);
  node.FinishUntilAnswered(fetch.call);
  const CallId step = training.StartStep(1);
  while (node.in_flight() > 0) node.FinishOne();
  EXPECT_FALSE(node.Answered(step));
  EXPECT_EQ(node.ReplyTo(training.Publish(1)).status.code(), absl::StatusCode::kAborted);
  node.Post(ReleaseCall{node.Call(), session, 1000, {training.chunks()[1]}});
  node.FinishUntilAnswered(step);
  EXPECT_TRUE(node.ReplyTo(step).status.ok());
  EXPECT_TRUE(node.ReplyTo(training.Publish(1)).status.ok());
}

TEST(StepsTest, AreRefusedWhereTheyCannotBe) {
  ByteNode node(SmallHost());
  const SessionId session = node.Open("job", std::chrono::hours(1));
  Training training(&node, session);
  StepCall call;
  call.session = session;
  call.chunks = {training.chunks().begin(), training.chunks().begin() + 7};
  call.reads = 4;
  const auto code_of = [&](const optimizer::Work& work) {
    call.call = node.Call();
    call.work = std::make_shared<const optimizer::Work>(work);
    node.Post(call);
    return node.ReplyTo(call.call).status.code();
  };
  optimizer::Work work = AdamWork(1);
  std::get<optimizer::AdamOptions>(work.rule).lr = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument);
  work = AdamWork(0);
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument);
  work = AdamWork(1);
  work.pieces[0].new_parameter = {1, 0};
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument) << "what is read stays";
  work = AdamWork(1);
  work.pieces[0].parameter.offset = ByteNode::kChunk.count() - 4;
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument) << "it does not end in its chunk";
  work.pieces[0].parameter.offset = ~uint64_t{3};
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument) << "offsets do not overflow";
  work = AdamWork(1);
  work.pieces[0].elements = ~uint64_t{0};
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument) << "nor do sizes";
  work = AdamWork(1);
  work.pieces[0].new_states[1] = work.pieces[0].new_states[0];
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument) << "what is written is apart";
  work = AdamWork(1);
  work.copies = {{{1, 0}, {9, 0}, 4}};
  EXPECT_EQ(code_of(work), absl::StatusCode::kInvalidArgument) << "there is no such chunk";
  call.reads = 8;
  EXPECT_EQ(code_of(AdamWork(1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(training.Read(), State(3, Values(kElements, 0)));
}

// A script may fetch more while it uses what a step of its own waits for.
TEST(StepsTest, HoldNobodyUpWhileTheyWaitForRoom) {
  ByteNode node(SmallHost());
  const SessionId session = node.Open("job", std::chrono::hours(1));
  Training training(&node, session);
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
  const CallId step = training.StartStep(1);
  const CallId later = fetch(5, 4);
  node.Post(ReleaseCall{node.Call(), session, 1000, {more[0]}});
  node.FinishUntilAnswered(later);
  EXPECT_TRUE(node.ReplyTo(later).status.ok());
  EXPECT_FALSE(node.Answered(step));
  node.Post(ReleaseCall{node.Call(), session, 1001, {more.begin() + 1, more.end()}});
  node.FinishUntilAnswered(step);
  EXPECT_TRUE(node.ReplyTo(step).status.ok());
}

TEST(StepsTest, CountGradientsThatAreNotFinite) {
  ByteNode node(SmallHost());
  const SessionId session = node.Open("job", std::chrono::hours(1));
  Training training(&node, session);
  node.Fill(
      session, training.chunks()[0],
      {1, std::numeric_limits<float>::infinity(), 2, std::numeric_limits<float>::quiet_NaN()});
  StepCall call;
  call.session = session;
  call.chunks = {training.chunks().begin(), training.chunks().begin() + 7};
  call.reads = 4;
  const auto count = [&](bool counts) {
    optimizer::Work work = AdamWork(1);
    work.counts_non_finite = counts;
    call.call = node.Call();
    call.work = std::make_shared<const optimizer::Work>(work);
    node.Post(call);
    node.FinishUntilAnswered(call.call);
    return std::get<StepReply>(node.ReplyTo(call.call).value).non_finite_gradients;
  };
  EXPECT_EQ(count(true), 2u);
  EXPECT_EQ(count(false), 0u);
  EXPECT_EQ(training.Read(), State(3, Values(kElements, 0))) << "not published, it is undone";
}

TEST(StepsTest, EndWithTheirJobAndNotBefore) {
  ByteNode node(SmallHost());
  const SessionId session = node.Open("job", Duration(0));
  Training training(&node, session);
  training.FillGradient(1);
  const CallId step = training.StartStep(1);
  while (node.in_flight() > 1) node.FinishOne();
  node.Post(ClientGone{session});  // The job has no time to live: its memory goes, after the step.
  while (node.in_flight() > 0) node.FinishOne();
  EXPECT_TRUE(node.Answered(step));
  node.Open("job", Duration(0));
}

// What is on its way to SSD, or back, is exchanged as it is: the old, the new, or both.
TEST(StepsTest, ArePublishedWhileChunksMove) {
  const std::vector<State> expected = Expected(SmallHost());
  int moved = 0;
  for (int at = 0; at < 12; ++at) {
    SCOPED_TRACE(at);
    ByteNode node(SmallHost());
    const SessionId session = node.Open("job", std::chrono::hours(1));
    Training training(&node, session);
    training.Step(1);
    training.FillGradient(2);
    const CallId step = training.StartStep(2);
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
    ASSERT_TRUE(node.ReplyTo(training.Publish(2)).status.ok());
    node.FinishUntilAnswered(fetch.call);
    node.Post(ReleaseCall{node.Call(), session, 1000, fetch.chunks});
    ASSERT_EQ(training.Read(), expected[2]);
    training.Step(3);
    ASSERT_EQ(training.Read(), expected[3]);
  }
  EXPECT_GT(moved, 0);
}

struct Case {
  const char* name;
  EngineOptions options;
};

class StepsAtAnyMomentTest : public testing::TestWithParam<Case> {};

// A client dies at every I/O of a step; another one finds the job at the step before, or at this
// one, and goes on to the same end.
TEST_P(StepsAtAnyMomentTest, DeathLeavesAWholeStep) {
  const std::vector<State> expected = Expected(GetParam().options);
  bool died_in_time = true;
  for (int at = 0; died_in_time; ++at) {
    SCOPED_TRACE(at);
    ByteNode node(GetParam().options);
    SessionId session = node.Open("job", std::chrono::hours(1));
    Training training(&node, session);
    training.Step(1);
    training.FillGradient(2);
    training.Displace();
    const CallId step = training.StartStep(2);
    for (int i = 0; i < at && !node.Answered(step); ++i) node.Advance();
    died_in_time = !node.Answered(step);
    if (!died_in_time) training.Publish(2);
    node.Post(ClientGone{session});
    OpenReply opened;
    session = node.Open("job", std::chrono::hours(1), &opened);
    training.GoOnIn(session);
    ASSERT_EQ(opened.published_step, died_in_time ? 1u : 2u);
    ASSERT_EQ(training.Read(), expected[opened.published_step]);
    for (uint64_t next = opened.published_step + 1; next <= kSteps; ++next) training.Step(next);
    ASSERT_EQ(training.Read(), expected[kSteps]);
  }
}

// Every I/O of a step fails once; the step fails or not, and made again it is the same.
TEST_P(StepsAtAnyMomentTest, FailureLeavesAWholeStep) {
  const std::vector<State> expected = Expected(GetParam().options);
  bool failed_in_time = true;
  for (int at = 0; failed_in_time; ++at) {
    SCOPED_TRACE(at);
    ByteNode node(GetParam().options);
    Training training(&node, node.Open("job", std::chrono::hours(1)));
    training.Step(1);
    training.FillGradient(2);
    training.Displace();
    const CallId step = training.StartStep(2, std::chrono::seconds(5));
    int finished = 0;
    failed_in_time = false;
    while (!node.Answered(step)) {
      if (node.in_flight() > 0 && finished++ == at) {
        failed_in_time = true;
        node.FinishOne(absl::DataLossError("the disk lies"));
      } else {
        node.Advance();
      }
    }
    ASSERT_EQ(training.Read(), expected[1]);
    for (uint64_t next = 2; next <= kSteps; ++next) training.Step(next);
    ASSERT_EQ(training.Read(), expected[kSteps]);
  }
}

// So does one that fails for good: the step is undone with a clear error, and training can go on.
TEST_P(StepsAtAnyMomentTest, ADiskThatFailsForAWhileUndoesTheStep) {
  const std::vector<State> expected = Expected(GetParam().options);
  ByteNode node(GetParam().options);
  Training training(&node, node.Open("job", std::chrono::hours(1)));
  training.Step(1);
  training.FillGradient(2);
  training.Displace();
  const CallId step = training.StartStep(2, std::chrono::seconds(1));
  for (int i = 0; i < 1000 && !node.Answered(step); ++i) {
    if (node.in_flight() > 0) node.FinishOne(absl::DataLossError("the disk is broken"));
    node.Advance();
  }
  ASSERT_TRUE(node.Answered(step));
  ASSERT_EQ(training.Read(), expected[1]);
  for (uint64_t next = 2; next <= kSteps; ++next) training.Step(next);
  ASSERT_EQ(training.Read(), expected[kSteps]);
}

INSTANTIATE_TEST_SUITE_P(Nodes, StepsAtAnyMomentTest,
                         testing::Values(Case{"HostAndSsd", SmallHost()},
                                         Case{"DeviceHostAndSsd", WithDevice()}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace memtide

// Step parts that the session computes: where its chunks are meanwhile, and how the part ends.
#include <string>
#include <vector>

#include "daemon/engine/testing/step_training.h"

namespace memtide {
namespace {

class SessionPartsTest : public testing::TestWithParam<bool> {
 protected:
  SessionPartsTest()
      : options_(GetParam() ? WithDevice() : SmallHost()),
        node_(options_),
        session_(node_.Open("job", std::chrono::hours(1))),
        training_(&node_, session_) {}

  StepCall Start(uint64_t part) {
    StepCall call;
    call.call = node_.Call();
    call.session = session_;
    call.chunks = {training_.chunks().begin(), training_.chunks().begin() + 7};
    call.reads = 4;
    call.part = part;
    return call;
  }
  // Where the chunks of a part that has begun are.
  std::vector<char*> PlacesOf(CallId call) {
    std::vector<char*> places;
    for (const MemoryPlace& place : std::get<PartReply>(node_.ReplyTo(call).value).places) {
      places.push_back(node_.At(place));
    }
    return places;
  }
  std::vector<char*> Begin(uint64_t part) {
    const StepCall call = Start(part);
    node_.Post(call);
    node_.FinishUntilAnswered(call.call);
    EXPECT_TRUE(node_.ReplyTo(call.call).status.ok()) << node_.ReplyTo(call.call).status;
    return PlacesOf(call.call);
  }
  absl::Status End(SessionId session, uint64_t part, bool computed) {
    const EndPartCall call{node_.Call(), session, part, computed, 3};
    node_.Post(call);
    return node_.ReplyTo(call.call).status;
  }
  absl::StatusCode CodeOf(const StepCall& call) {
    node_.Post(call);
    return node_.ReplyTo(call.call).status.code();
  }
  Counters Counted() {
    const InspectCall call{node_.Call()};
    node_.Post(call);
    return std::get<InspectReply>(node_.ReplyTo(call.call).value).counters;
  }
  uint64_t StepParts() { return Counted().step_parts; }

  const EngineOptions options_;
  EngineByteHarness node_;
  const SessionId session_;
  StepTraining training_;
};

INSTANTIATE_TEST_SUITE_P(Nodes, SessionPartsTest, testing::Bool(), [](const auto& info) {
  return info.param ? "WithDevice" : "WithoutDevice";
});

TEST_P(SessionPartsTest, GiveTheStatesThatCopiesOfTheDaemonGive) {
  const std::vector<State> expected = Expected(options_);
  for (uint64_t step = 1; step <= kSteps; ++step) {
    training_.FillGradient(step);
    training_.Displace();
    const std::vector<char*> places = Begin(step);
    RunAll(StepWork(), places);
    EXPECT_TRUE(End(session_, step, /*computed=*/true).ok());
    training_.Displace();
    ASSERT_TRUE(node_.ReplyTo(training_.Commit(step)).status.ok());
    EXPECT_EQ(training_.Read(), expected[step]);
  }
  EXPECT_EQ(StepParts(), kSteps);
}

TEST_P(SessionPartsTest, HoldTheirChunksUntilTheyEnd) {
  training_.FillGradient(1);
  const std::vector<char*> places = Begin(1);
  std::memset(places[4], 1, EngineByteHarness::kChunk.count());
  training_.Displace();
  const std::string written(EngineByteHarness::kChunk.count(), 1);
  EXPECT_EQ(std::string(places[4], EngineByteHarness::kChunk.count()), written);
  FetchCall fetch;
  fetch.call = node_.Call();
  fetch.session = session_;
  fetch.tier = Tier::kHost;
  fetch.access = Access::kWrite;
  fetch.chunks = {training_.chunks()[1]};
  node_.Post(fetch);
  for (int i = 0; i < 10; ++i) node_.Advance();
  EXPECT_FALSE(node_.Answered(fetch.call)) << "the part reads the chunk";
  EXPECT_TRUE(End(session_, 1, /*computed=*/true).ok());
  node_.FinishUntilAnswered(fetch.call);
  EXPECT_TRUE(node_.ReplyTo(fetch.call).status.ok());
}

TEST_P(SessionPartsTest, LeaveNothingIfTheyAreNotComputed) {
  training_.Step(1);
  std::memset(Begin(1)[4], 1, EngineByteHarness::kChunk.count());
  EXPECT_TRUE(End(session_, 1, /*computed=*/false).ok());
  EXPECT_EQ(node_.Read(session_, training_.chunks()[4], 1), Values(1, 0));
  EXPECT_EQ(StepParts(), 1u) << "that of the step";
}

TEST_P(SessionPartsTest, CountGradientsThatAreNotFinite) {
  Begin(1);
  EXPECT_TRUE(End(session_, 1, /*computed=*/true).ok());
  EXPECT_EQ(Counted().non_finite_gradients, 3u);
  Begin(2);
  EXPECT_TRUE(End(session_, 2, /*computed=*/false).ok());
  EXPECT_EQ(Counted().non_finite_gradients, 3u) << "those of a part that was computed";
  EXPECT_EQ(training_.Read(), State(3, Values(kTrainedElements, 0)))
      << "without a commit, the step has no effect";
}

TEST_P(SessionPartsTest, EndWithTheirSession) {
  training_.Step(1);
  const State before = training_.Read();
  std::memset(Begin(1)[4], 1, EngineByteHarness::kChunk.count());
  const StepCall waits = Start(2);
  node_.Post(waits);
  node_.Post(ClientGone{session_});
  EXPECT_FALSE(node_.ReplyTo(waits.call).status.ok());
  const SessionId next = node_.Open("job", std::chrono::hours(1));
  training_.GoOnIn(next);
  EXPECT_EQ(training_.Read(), before);
  EXPECT_EQ(node_.Read(next, training_.chunks()[4], 1), Values(1, 0));
  training_.Step(2);
}

TEST_P(SessionPartsTest, AreRefusedWhereTheyCannotBe) {
  EXPECT_EQ(CodeOf(Start(0)), absl::StatusCode::kInvalidArgument) << "they have a number";
  StepCall call = Start(1);
  call.reads = 8;
  EXPECT_EQ(CodeOf(call), absl::StatusCode::kInvalidArgument);
  call = Start(1);
  call.chunks[0] = ChunkId(12345);
  EXPECT_EQ(CodeOf(call), absl::StatusCode::kNotFound);
  Begin(1);
  EXPECT_EQ(CodeOf(Start(1)), absl::StatusCode::kInvalidArgument) << "the first has not ended";
  const StepCall waits = Start(2);
  node_.Post(waits);
  EXPECT_FALSE(node_.Answered(waits.call));
  EXPECT_EQ(CodeOf(Start(2)), absl::StatusCode::kInvalidArgument) << "the first waits";
  EXPECT_TRUE(End(session_, 1, /*computed=*/true).ok());
  node_.FinishUntilAnswered(waits.call);
  EXPECT_TRUE(node_.ReplyTo(waits.call).status.ok());
  EXPECT_TRUE(End(session_, 2, /*computed=*/true).ok());
  Begin(1);
}

TEST_P(SessionPartsTest, AreEndedOnlyByTheirSession) {
  EXPECT_TRUE(End(session_, 7, /*computed=*/true).ok()) << "it may have ended already";
  Begin(1);
  const SessionId other = node_.Open("job", std::chrono::hours(1));
  EXPECT_TRUE(End(other, 1, /*computed=*/true).ok());
  EXPECT_EQ(StepParts(), 0u);
  EXPECT_TRUE(End(session_, 0, /*computed=*/true).ok());
  EXPECT_EQ(StepParts(), 0u);
  EXPECT_TRUE(End(session_, 1, /*computed=*/true).ok());
  EXPECT_EQ(StepParts(), 1u);
}

TEST_P(SessionPartsTest, DoNotEndWhatTheDaemonCopies) {
  training_.FillGradient(1);
  const CallId step = training_.StartStep();
  EXPECT_TRUE(End(session_, 0, /*computed=*/true).ok());
  node_.FinishUntilAnswered(step);
  EXPECT_TRUE(node_.ReplyTo(step).status.ok());
}

}  // namespace
}  // namespace memtide

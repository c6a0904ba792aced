#include "daemon/replay/access_sequence.h"

#include "daemon/replay/testing/trace_builder.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

AccessSequence Made(const v1::Trace& trace) {
  absl::StatusOr<AccessSequence> sequence = ToAccessSequence(trace);
  EXPECT_TRUE(sequence.ok()) << sequence.status();
  return *std::move(sequence);
}

std::string Events(const PlayedMoment& moment) {
  std::string text;
  for (const ChunkEvent& event : moment.events) {
    text += static_cast<char>('a' + event.chunk);
    text += "rw+-"[static_cast<int>(event.kind)];
  }
  return text;
}

TEST(AccessSequenceTest, AChunkThatIsNotAllocatedBeforeItsUseIsThereFromTheStart) {
  const AccessSequence sequence = Made(BuildTrace({"ar b+ bw", "b- c-"}));
  ASSERT_EQ(sequence.chunks.size(), 3u);
  EXPECT_TRUE(sequence.chunks[0].from_start);
  EXPECT_FALSE(sequence.chunks[1].from_start);
  EXPECT_TRUE(sequence.chunks[2].from_start);
  EXPECT_EQ(MostChunks(sequence), 3u);
  EXPECT_EQ(Events(sequence.moments[0]), "arb+bw");
}

TEST(AccessSequenceTest, WhatFollowsTheLastIterationIsLeftOut) {
  v1::Trace trace = BuildTrace({"ar | br", "ar", "zr"});
  trace.mutable_iteration_ends()->RemoveLast();
  const AccessSequence sequence = Made(trace);
  EXPECT_EQ(sequence.iterations(), 2u);
  EXPECT_EQ(sequence.IterationBegin(1), 2u);
  EXPECT_EQ(sequence.moments.size(), 3u);
  EXPECT_EQ(sequence.chunks.size(), 2u);
  // Its beginning tells how long the last one took.
  EXPECT_EQ(sequence.moments[2].compute, milliseconds(1));
}

TEST(AccessSequenceTest, ComputeTimeIsWhatTheStallsLeave) {
  v1::Trace trace = BuildTrace({"ar | br | cr | dr"});
  v1::TracedStall* stall = trace.add_stalls();
  stall->set_start_ns(700000);
  stall->set_duration_ns(1400000);  // Until 2.1 ms.
  const AccessSequence sequence = Made(trace);
  EXPECT_EQ(sequence.moments[0].compute, microseconds(700));
  EXPECT_EQ(sequence.moments[1].compute, microseconds(0));
  EXPECT_EQ(sequence.moments[2].compute, microseconds(900));
  EXPECT_EQ(sequence.moments[3].compute, microseconds(0));  // Nothing says how long.
}

TEST(AccessSequenceTest, WhatCannotBeIsRefused) {
  for (const std::vector<std::string>& iterations :
       {std::vector<std::string>{"ar a+"}, {"a-", "ar"}, {"a+ a- a-"}}) {
    const absl::Status status = ToAccessSequence(BuildTrace(iterations)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find("chunk 0"), std::string::npos) << status;
  }
  EXPECT_EQ(ToAccessSequence(BuildTrace({})).status().code(),
            absl::StatusCode::kFailedPrecondition);

  v1::Trace trace = BuildTrace({"ar", "ar"});
  trace.set_iteration_ends(1, 1);
  EXPECT_EQ(ToAccessSequence(trace).status().code(), absl::StatusCode::kInvalidArgument);
  trace.set_iteration_ends(1, 3);
  EXPECT_EQ(ToAccessSequence(trace).status().code(), absl::StatusCode::kInvalidArgument);

  trace = BuildTrace({"ar"});
  trace.mutable_moments(0)->set_uses(0, ~uint32_t{0});
  EXPECT_EQ(ToAccessSequence(trace).status().code(), absl::StatusCode::kInvalidArgument);

  trace = BuildTrace({"ar"});
  trace.mutable_moments(0)->set_time_ns(INT64_MIN);
  EXPECT_EQ(ToAccessSequence(trace).status().code(), absl::StatusCode::kInvalidArgument);
  trace = BuildTrace({"ar"});
  trace.add_stalls()->set_duration_ns(INT64_MAX);
  EXPECT_EQ(ToAccessSequence(trace).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(AccessSequenceTest, PartsTakeShadowChunksAndTimeBesideTheOtherMoments) {
  // Moments take a millisecond each: a part that others hide, and two that are not hidden.
  AccessSequence sequence = Made(BuildTrace({"ar | br aw | cr | dr | br aw cw | br cw", "ar"}));
  EXPECT_EQ(MostChunks(sequence), 4u);
  EXPECT_EQ(ComputeTime(sequence), milliseconds(6));
  for (const size_t part : {1, 4, 5}) sequence.moments[part].is_part = true;
  EXPECT_EQ(ShadowedChunks(sequence), (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(MostChunks(sequence), 6u);
  sequence.moments.pop_back();
  EXPECT_EQ(ComputeTime(sequence), milliseconds(5));
}

TEST(AccessSequenceTest, RepeatingMakesAndFreesWhatDiffersAtTheSeam) {
  const AccessSequence once = Made(BuildTrace({"a+ aw", "ar b+ bw | a- c+"}));
  const AccessSequence repeated = Repeated(once, 1, 2);
  ASSERT_EQ(repeated.iterations(), 4u);
  ASSERT_EQ(repeated.moments.size(), 7u);
  EXPECT_EQ(Events(repeated.moments[3]), "b-c-a+arb+bw");
  EXPECT_EQ(Events(repeated.moments[4]), "a-c+");
  EXPECT_EQ(Events(repeated.moments[5]), "b-c-a+arb+bw");
  EXPECT_EQ(repeated.iteration_ends.back(), 7u);
  EXPECT_EQ(MostChunks(repeated), 2u);
}

}  // namespace
}  // namespace memtide

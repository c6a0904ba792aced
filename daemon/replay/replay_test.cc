#include "daemon/replay/replay.h"

#include "daemon/replay/testing/trace_builder.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Bytes kChunk = MiB(2);

// Links that move a chunk in a millisecond.
ReplayOptions Slots(uint32_t device, uint32_t host, Policy policy = Policy::kLru) {
  ReplayOptions options;
  options.policy = policy;
  options.device_slots = device;
  options.host_slots = host;
  const LinkSpeed speed{static_cast<double>(kChunk.count()) * 1000, Duration(0)};
  options.links = {speed, speed, speed, speed};
  return options;
}

std::vector<std::string> Times(size_t times, const std::string& iteration) {
  return std::vector<std::string>(times, iteration);
}

ReplayResult Played(const AccessSequence& sequence, const ReplayOptions& options) {
  absl::StatusOr<ReplayResult> result = Replay(sequence, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

TEST(ReplayTest, WhatFitsMovesOnce) {
  const ReplayResult result = Played(BuildSequence(Times(4, "ar bw cr dw")), Slots(4, 4));
  EXPECT_EQ(result.counted_iterations, 2u);
  EXPECT_EQ(result.counted.moved.Total(), Bytes(0));
  EXPECT_EQ(result.counted.stalled, Duration(0));
}

TEST(ReplayTest, LruReadsEachOfALoopThatDoesNotFit) {
  const ReplayResult result = Played(BuildSequence(Times(5, "ar br cr dr er fr")), Slots(4, 6));
  for (size_t i = kWarmUpIterations; i < result.iterations.size(); ++i) {
    const LinkBytes& moved = result.iterations[i].moved;
    EXPECT_EQ(moved.to_device, kChunk * 6) << i;
    EXPECT_EQ(moved.Total(), moved.to_device) << i;  // The host has a copy of each.
  }
  EXPECT_EQ(result.counted.moved.to_device, kChunk * 18);
}

TEST(ReplayTest, WhatWasWrittenIsWrittenBackWhereverItDoesNotFit) {
  const AccessSequence sequence = BuildSequence(Times(4, "aw bw cw dw ew fw"));
  const LinkBytes device = Played(sequence, Slots(4, 6)).iterations[3].moved;
  EXPECT_EQ(device.to_device, kChunk * 6);
  EXPECT_EQ(device.from_device, kChunk * 6);
  EXPECT_EQ(device.disk_read + device.disk_written, Bytes(0));
  // The host is the fastest tier, and the disk takes what it cannot hold.
  const LinkBytes host = Played(sequence, Slots(0, 4)).iterations[3].moved;
  EXPECT_EQ(host.disk_read, kChunk * 6);
  EXPECT_EQ(host.disk_written, kChunk * 6);
  EXPECT_EQ(host.to_device + host.from_device, Bytes(0));
}

TEST(ReplayTest, WhatIsFreedIsNeverWrittenBack) {
  // e and f are new in each iteration, and gone before room is needed.
  const ReplayResult result =
      Played(BuildSequence(Times(4, "ar br e+ ew e- cr dr f+ fw f-")), Slots(5, 6));
  EXPECT_EQ(result.counted.moved.from_device, Bytes(0));
}

TEST(ReplayTest, AMomentInHostMemoryBringsChunksThereAndTheDeviceReadsThemAgain) {
  AccessSequence sequence = BuildSequence(Times(5, "aw bw | aw bw"));
  for (size_t i = 1; i < sequence.moments.size(); i += 2) sequence.moments[i].on_host = true;
  const LinkBytes moved = Played(sequence, Slots(4, 4)).iterations[3].moved;
  EXPECT_EQ(moved.to_device, kChunk * 2);
  EXPECT_EQ(moved.from_device, kChunk * 2);
}

TEST(ReplayTest, StallsAddToTheComputeTimeThatPassesWhileChunksAreHeld) {
  // Each moment computes for a millisecond, and each of its uses waits for as long.
  const ReplayResult result = Played(BuildSequence(Times(4, "ar br cr | dr er fr")), Slots(4, 6));
  EXPECT_EQ(result.iterations[2].stalled, milliseconds(6));
  EXPECT_EQ(result.iterations[2].elapsed, milliseconds(8) - Duration(2));  // A third is rounded.
  ReplayOptions faster = Slots(4, 6);
  faster.compute_scale = 0.5;
  EXPECT_EQ(Played(BuildSequence(Times(4, "ar br | cr dr | er fr")), faster).iterations[2].elapsed,
            milliseconds(6) + microseconds(1500));
}

TEST(ReplayTest, FifoLetsGoOfWhatCameFirstHoweverOftenItIsUsed) {
  // LRU never parts with a, which comes twice as often as the others.
  const AccessSequence sequence = BuildSequence(Times(5, "ar br cr dr ar er fr gr"));
  const Bytes lru = Played(sequence, Slots(4, 8)).iterations[3].moved.to_device;
  const Bytes fifo = Played(sequence, Slots(4, 8, Policy::kFifo)).iterations[3].moved.to_device;
  EXPECT_EQ(lru, kChunk * 6);
  EXPECT_GT(fifo, lru);
}

TEST(ReplayTest, BeladyKeepsPartOfALoopAndPatrickStarPaysBothWays) {
  const AccessSequence sequence = BuildSequence(Times(6, "ar br cr dr er fr"));
  const IterationCost belady = Played(sequence, Slots(4, 6, Policy::kBelady)).counted;
  EXPECT_LT(belady.moved.to_device, kChunk * 4 * 4);
  EXPECT_EQ(belady.moved.from_device, Bytes(0));
  const IterationCost patrickstar = Played(sequence, Slots(4, 6, Policy::kPatrickStar)).counted;
  EXPECT_EQ(patrickstar.moved.to_device, belady.moved.to_device);
  EXPECT_GE(patrickstar.moved.from_device, patrickstar.moved.to_device);
}

TEST(ReplayTest, TheDaemonsPolicyBringsAheadWhileTheProcessComputes) {
  // A millisecond of computing for each chunk, which takes as long to come.
  const AccessSequence sequence = BuildSequence(Times(6, "ar | br | cr | dr | er | fr | gr | hr"));
  const IterationCost belady = Played(sequence, Slots(5, 8, Policy::kBelady)).counted;
  const IterationCost memtide = Played(sequence, Slots(5, 8, Policy::kMemtide)).counted;
  EXPECT_LT(memtide.stalled, belady.stalled / 4);
}

TEST(ReplayTest, OnASlowLinkChunksLeaveThatAreSpreadOverTheStep) {
  // 24 chunks in turn, a millisecond each. A chunk comes in three, so every third one can come in
  // time; if neighbours left, their transfers would queue.
  std::string iteration = "ar";
  for (char chunk = 'b'; chunk <= 'x'; ++chunk) iteration += std::string(" | ") + chunk + "r";
  const AccessSequence sequence = BuildSequence(Times(8, iteration));
  ReplayOptions options = Slots(20, 24, Policy::kMemtide);
  options.links.to_device.bytes_per_second /= 3;
  const std::vector<IterationCost> iterations = Played(sequence, options).iterations;
  EXPECT_LE(iterations.back().stalled, milliseconds(4));
  EXPECT_LE(iterations.back().moved.to_device, kChunk * 8);
}

// Iterations whose moments with these numbers are parts of a step.
AccessSequence Stepped(const std::string& iteration, const std::vector<size_t>& parts,
                       Duration compute = milliseconds(1)) {
  constexpr size_t kTimes = 6;
  AccessSequence sequence = BuildSequence(Times(kTimes, iteration));
  for (size_t i = 0; i < kTimes; ++i) {
    for (const size_t part : parts) {
      PlayedMoment& moment = sequence.moments[sequence.IterationBegin(i) + part];
      moment.is_part = moment.on_host = true;
      moment.compute = compute;
    }
  }
  return sequence;
}

TEST(ReplayTest, APartIsComputedWhileOtherMomentsAre) {
  const AccessSequence sequence = Stepped("ar | gw | gr aw | br | br | br", {2}, milliseconds(2));
  for (const uint32_t device : {0, 8}) {
    const IterationCost cost =
        Played(sequence, Slots(device, 16, Policy::kMemtide)).iterations.at(4);
    // The device's gradient comes to host memory, and its new weights come back.
    EXPECT_EQ(cost.stalled, milliseconds(device > 0 ? 1 : 0)) << device;
    EXPECT_EQ(cost.elapsed, milliseconds(5) + cost.stalled) << device;
  }
}

TEST(ReplayTest, AnIterationWaitsForItsLastPartAndPartsForEachOther) {
  const AccessSequence sequence = Stepped("ar | br | gw | gr aw | gr bw", {3, 4}, milliseconds(7));
  // There is room for three parts at a time.
  const IterationCost cost = Played(sequence, Slots(0, 64, Policy::kMemtide)).iterations.at(4);
  EXPECT_EQ(cost.stalled, milliseconds(14));
  EXPECT_EQ(cost.elapsed, milliseconds(3 + 14));
}

TEST(ReplayTest, NewContentIsBesideTheOldUntilTheCommit) {
  const std::string iteration = "ar br cr dr er fr | gw | gr aw bw | gr cw dw | gr ew fw";
  // Seven chunks fit, and so do thirteen with the shadow chunks of six.
  const AccessSequence parts = Stepped(iteration, {2, 3, 4});
  EXPECT_EQ(Played(parts, Slots(0, 16)).iterations.at(4).moved.Total(), Bytes(0));
  const LinkBytes moved = Played(parts, Slots(0, 8)).iterations.at(4).moved;
  EXPECT_GT(moved.disk_written, Bytes(0));
  EXPECT_GT(moved.disk_read, Bytes(0));
  EXPECT_EQ(Played(Stepped(iteration, {}), Slots(0, 8)).iterations.at(4).moved.Total(), Bytes(0));
}

TEST(ReplayTest, ACommitExchangesContents) {
  // The device has a copy of the weights, which a commit makes the old ones.
  const AccessSequence sequence = Stepped("ar | gw | gr aw", {2});
  const LinkBytes moved = Played(sequence, Slots(8, 16, Policy::kMemtide)).iterations.at(4).moved;
  EXPECT_EQ(moved.to_device, kChunk);
  EXPECT_EQ(moved.from_device, kChunk);  // The gradient.
}

TEST(ReplayTest, APartThatDoesNotFitHasItsChunksByTurns) {
  const AccessSequence sequence = Stepped("ar br cr dr | gw | gr aw bw cw dw | er", {2});
  const IterationCost cost = Played(sequence, Slots(0, 6, Policy::kMemtide)).iterations.at(4);
  EXPECT_GE(cost.elapsed, milliseconds(3));
  // Five are read and four written, of which some stay.
  EXPECT_LE(cost.moved.disk_read, kChunk * 9);
}

// The cost of eight chunks of this kind that end in each iteration.
IterationCost OfEndingChunks(v1::ChunkKind kind) {
  v1::Trace trace = BuildTrace(
      Times(6,
            "a+ aw | b+ bw | c+ cw | d+ dw | e+ ew | f+ fw | g+ gw | h+ hw | hr h- | gr g- | "
            "fr f- | er e- | dr d- | cr c- | br b- | ar a-"));
  for (uint32_t number = 0; number < 8; ++number) {
    v1::TracedChunk* chunk = trace.add_chunks();
    chunk->set_number(number);
    chunk->set_kind(kind);
  }
  return Played(*ToAccessSequence(trace), Slots(4, 8, Policy::kMemtide)).counted;
}

TEST(ReplayTest, ActivationsThatEndMoveNoMoreThanOtherChunks) {
  const IterationCost activations = OfEndingChunks(v1::CHUNK_KIND_ACTIVATION);
  const IterationCost others = OfEndingChunks(v1::CHUNK_KIND_UNSPECIFIED);
  EXPECT_GT(activations.moved.to_device, Bytes(0));
  EXPECT_LE(activations.moved.from_device, others.moved.from_device);
}

IterationCost OfActivations(const std::string& iteration) {
  v1::Trace trace = BuildTrace(Times(6, iteration));
  for (uint32_t number = 0; number < 8; ++number) {
    v1::TracedChunk* chunk = trace.add_chunks();
    chunk->set_number(number);
    chunk->set_kind(v1::CHUNK_KIND_ACTIVATION);
  }
  return Played(*ToAccessSequence(trace), Slots(4, 4, Policy::kMemtide)).counted;
}

TEST(ReplayTest, ActivationsThatAreFreedAndThoseThatAreDiscardedCostTheSame) {
  // An older memtide freed them in backward; a discard is recorded as the end of one chunk and the
  // beginning of the next.
  const IterationCost freed = OfActivations(
      "a+ aw | b+ bw | c+ cw | d+ dw | e+ ew | f+ fw | g+ gw | h+ hw | hr h- | gr g- | fr f- | "
      "er e- | dr d- | cr c- | br b- | ar a-");
  const IterationCost discarded = OfActivations(
      "aw | bw | cw | dw | ew | fw | gw | hw | hr h- h+ | gr g- g+ | fr f- f+ | er e- e+ | "
      "dr d- d+ | cr c- c+ | br b- b+ | ar a- a+");
  EXPECT_EQ(freed.moved.Total(), discarded.moved.Total());
  EXPECT_EQ(freed.stalled, discarded.stalled);
  // Four iterations: at most one way down and back for each chunk, and nothing for dead content.
  EXPECT_GT(discarded.moved.to_device, Bytes(0));
  EXPECT_LE(discarded.moved.from_device, kChunk * 8 * 4);
  EXPECT_LE(discarded.moved.to_device, kChunk * 8 * 4);
}

TEST(ReplayTest, TheSameTraceGivesTheSameResult) {
  const AccessSequence sequence =
      BuildSequence(Times(4, "aw br cr a- | a+ aw dw er fr br cw gw hr"));
  const ReplayResult one = Played(sequence, Slots(4, 4)), other = Played(sequence, Slots(4, 4));
  for (size_t i = 0; i < one.iterations.size(); ++i) {
    EXPECT_EQ(one.iterations[i].moved.Total(), other.iterations[i].moved.Total());
    EXPECT_EQ(one.iterations[i].elapsed, other.iterations[i].elapsed);
  }
}

TEST(ReplayTest, ATraceThatIsOverAfterTheWarmUpIsRefused) {
  const absl::Status status = Replay(BuildSequence(Times(2, "ar")), Slots(4, 4)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("2 complete iterations"), std::string::npos) << status;
}

TEST(ReplayTest, TooFewSlotsAreRefused) {
  const AccessSequence sequence = BuildSequence(Times(3, "ar br cr dr er"));
  const absl::Status few = Replay(sequence, Slots(3, 4)).status();
  EXPECT_EQ(few.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(few.message().find("4 slots at least"), std::string::npos) << few;
  EXPECT_EQ(Replay(sequence, Slots(4, 1)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Replay(sequence, Slots(4, 0)).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Replay(sequence, Slots(5, 0)).ok());
}

TEST(ReplayTest, WhatTheEngineRefusesComesAsItSaysIt) {
  v1::Trace trace = BuildTrace(Times(3, "ar"));
  trace.set_chunk_size_bytes((2 << 20) + 1);
  const absl::Status status = Replay(*ToAccessSequence(trace), Slots(4, 4)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("must be a multiple of"), std::string::npos) << status;
}

}  // namespace
}  // namespace memtide

// Duplicates of chunks, on an EngineByteHarness: what costs nothing until it is written, which
// bytes each of them has then, and what is refused.
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/engine/testing/frozen_script.h"
#include "gmock/gmock.h"
#include "proto/protocol.h"

namespace memtide {
namespace {

using testing::HasSubstr;

class DuplicatesTest : public testing::Test {
 protected:
  explicit DuplicatesTest(uint32_t host_slots = 96, uint32_t ssd_slots = 256)
      : node_({{},
               EngineByteHarness::kChunk * host_slots,
               EngineByteHarness::kChunk * ssd_slots,
               Limits()}) {
    node_.elastic_ = true;
  }

  CallId Ask(const FrozenScript& script, std::vector<ChunkId> chunks, uint32_t copies) {
    const DuplicateCall call{node_.Call(), script.session(), ++last_request_, std::move(chunks),
                             copies};
    node_.Post(call);
    return call.call;
  }
  std::vector<ChunkId> Duplicate(const FrozenScript& script, uint32_t copies) {
    return node_.Finish<AllocateReply>(Ask(script, script.chunks(), copies)).chunks;
  }
  absl::Status Refusal(const FrozenScript& script, std::vector<ChunkId> chunks, uint32_t copies) {
    const CallId call = Ask(script, std::move(chunks), copies);
    node_.FinishUntilAnswered(call);
    return node_.ReplyTo(call).status;
  }
  std::vector<float> Read(const FrozenScript& script, ChunkId chunk) {
    return node_.Read(script.session(), chunk, kFrozenElements);
  }
  void Fill(const FrozenScript& script, ChunkId chunk, float first) {
    node_.Fill(script.session(), chunk, FrozenValues(first));
  }
  MemoryPlace Lease(const FrozenScript& script, ChunkId chunk, Access access,
                    Tier tier = Tier::kHost) {
    const Reply reply = node_.Fetch(script.session(), chunk, tier, access);
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    return std::get<FetchReply>(reply.value).leases.at(0).place;
  }
  InspectReply Inspect() {
    InspectCall call;
    call.call = node_.Call();
    call.sessions = true;
    node_.Post(call);
    return std::get<InspectReply>(node_.ReplyTo(call.call).value);
  }
  uint64_t Allocated() { return Inspect().kinds[0].allocated / EngineByteHarness::kChunk; }
  uint64_t Shared() { return Inspect().kinds[0].shared / EngineByteHarness::kChunk; }

  EngineByteHarness node_;
  uint64_t last_request_ = 1000;
};

TEST_F(DuplicatesTest, NothingMovesAndEachReadsWhatTheChunkHolds) {
  FrozenScript a(&node_, 2, 1);
  const MemoryPlace before = Lease(a, a.chunks()[1], Access::kRead);
  node_.Release(a.session(), a.chunks()[1]);
  const Counters counters = Inspect().counters;
  const std::vector<ChunkId> made = Duplicate(a, 3);
  ASSERT_EQ(made.size(), 6u);
  EXPECT_EQ(Allocated(), 2u);
  EXPECT_EQ(Shared(), 6u);
  EXPECT_EQ(Inspect().sessions.at(0).kinds[0].allocated, EngineByteHarness::kChunk * 2);
  EXPECT_TRUE(node_.read_only_regions_.empty()) << "the slots stay the job's";
  EXPECT_EQ(Inspect().counters.ssd_written, counters.ssd_written);
  EXPECT_EQ(Inspect().counters.step_parts, 0u);
  for (size_t i = 0; i < made.size(); ++i) EXPECT_EQ(Read(a, made[i]), FrozenValues(1 + i % 2));
  for (const ChunkId chunk : {a.chunks()[1], made[1], made[5]}) {
    const MemoryPlace place = Lease(a, chunk, Access::kRead);
    EXPECT_EQ(place.region, before.region);
    EXPECT_EQ(place.offset, before.offset);
  }
}

TEST_F(DuplicatesTest, AWriteConcernsTheWrittenOneAlone) {
  FrozenScript a(&node_, 1, 1);
  const std::vector<ChunkId> made = Duplicate(a, 3);
  Fill(a, made[1], 50);
  EXPECT_EQ(Allocated(), 2u);
  Fill(a, a.chunks()[0], 60);
  EXPECT_EQ(Read(a, made[0]), FrozenValues(1));
  EXPECT_EQ(Read(a, made[1]), FrozenValues(50));
  EXPECT_EQ(Read(a, made[2]), FrozenValues(1));
  EXPECT_EQ(a.Read(0), FrozenValues(60));
  Fill(a, made[0], 70);
  Fill(a, made[2], 80);
  EXPECT_EQ(Allocated(), 4u);
  EXPECT_EQ(Shared(), 0u);
}

TEST_F(DuplicatesTest, ALeaseForReadingStaysWhereItIsWhileItsChunkIsWritten) {
  FrozenScript a(&node_, 1, 1);
  const ChunkId duplicate = Duplicate(a, 1)[0];
  const MemoryPlace read = Lease(a, duplicate, Access::kRead);
  const MemoryPlace written = Lease(a, duplicate, Access::kWrite);
  EXPECT_TRUE(read.region != written.region || read.offset != written.offset);
  const std::vector<float> values = FrozenValues(9);
  std::memcpy(node_.At(written), values.data(), kFrozenElements * sizeof(float));
  node_.Free(a.session(), a.chunks()[0]);
  const std::vector<float> before = FrozenValues(1);
  EXPECT_EQ(std::memcmp(node_.At(read), before.data(), kFrozenElements * sizeof(float)), 0);
  node_.Release(a.session(), duplicate);
  EXPECT_EQ(Read(a, duplicate), FrozenValues(9));
  EXPECT_EQ(Allocated(), 1u);
}

TEST_F(DuplicatesTest, EachIsFreedAndDiscardedByItself) {
  FrozenScript a(&node_, 2, 1);
  const std::vector<ChunkId> made = Duplicate(a, 2);
  node_.Free(a.session(), a.chunks()[0]);
  node_.Free(a.session(), made[1]);
  node_.Post(DiscardCall{node_.Call(), a.session(), ++last_request_, {made[3]}});
  EXPECT_EQ(Read(a, made[0]), FrozenValues(1));
  EXPECT_EQ(Read(a, made[2]), FrozenValues(1));
  EXPECT_EQ(a.Read(1), FrozenValues(2));
  Fill(a, made[3], 20);
  EXPECT_EQ(a.Read(1), FrozenValues(2));
  for (const ChunkId chunk : {a.chunks()[1], made[0], made[2], made[3]}) {
    node_.Free(a.session(), chunk);
  }
  EXPECT_EQ(Allocated(), 0u);
}

TEST_F(DuplicatesTest, DuplicatesOfDuplicatesHaveTheSameContent) {
  FrozenScript a(&node_, 1, 1);
  const ChunkId first = Duplicate(a, 1)[0];
  const ChunkId second = node_.Finish<AllocateReply>(Ask(a, {first}, 1)).chunks[0];
  EXPECT_EQ(Allocated(), 1u);
  Fill(a, first, 5);
  EXPECT_EQ(Read(a, second), FrozenValues(1));
}

TEST_F(DuplicatesTest, ACommitGivesAChunkWhatItsShadowHasAndLeavesTheOthers) {
  for (const bool keep : {false, true}) {
    FrozenScript a(&node_, 1, 1);
    const ChunkId duplicate = Duplicate(a, 2)[0];
    const ChunkId shadow = node_.Allocate(a.session(), 1)[0];
    Fill(a, shadow, 30);
    CommitCall commit;
    commit.call = node_.Call();
    commit.session = a.session();
    commit.step = 1;
    commit.chunks = {duplicate};
    commit.shadows = {shadow};
    commit.keep_old_content = keep;
    node_.Post(commit);
    ASSERT_TRUE(node_.ReplyTo(commit.call).status.ok()) << node_.ReplyTo(commit.call).status;
    EXPECT_EQ(Read(a, duplicate), FrozenValues(30));
    EXPECT_EQ(a.Read(0), FrozenValues(1));
    if (keep) {
      EXPECT_EQ(Read(a, shadow), FrozenValues(1));
    }
    Fill(a, shadow, 40);
    EXPECT_EQ(Read(a, duplicate), FrozenValues(30));
    EXPECT_EQ(a.Read(0), FrozenValues(1));
    a.Dies();
  }
}

TEST_F(DuplicatesTest, AStepPartThatWritesOneLeavesTheOthers) {
  FrozenScript a(&node_, 1, 1);
  const std::vector<ChunkId> made = Duplicate(a, 2);
  StepCall part;
  part.call = node_.Call();
  part.session = a.session();
  part.chunks = {a.chunks()[0], made[0]};
  part.reads = 1;
  part.part = 7;
  node_.Post(part);
  const auto places = node_.Finish<PartReply>(part.call).places;
  ASSERT_EQ(places.size(), 2u);
  const std::vector<float> values = FrozenValues(9);
  std::memcpy(node_.At(places[1]), values.data(), kFrozenElements * sizeof(float));
  EndPartCall end;
  end.call = node_.Call();
  end.session = a.session();
  end.part = 7;
  end.computed = true;
  node_.Post(end);
  EXPECT_EQ(Read(a, made[0]), FrozenValues(9));
  EXPECT_EQ(Read(a, made[1]), FrozenValues(1));
  EXPECT_EQ(a.Read(0), FrozenValues(1));
}

TEST_F(DuplicatesTest, WhatIsOnSsdComesToHostMemoryFirst) {
  FrozenScript a(&node_, 2, 1);
  const EvictCall evict{node_.Call(), a.session(), Tier::kSsd, a.chunks()};
  node_.Post(evict);
  node_.FinishUntilAnswered(evict.call);
  const std::vector<ChunkId> made = Duplicate(a, 1);
  EXPECT_EQ(Read(a, made[1]), FrozenValues(2));
  EXPECT_EQ(Inspect().kinds[0].ssd.count(), 0u) << "the places there are free";
}

TEST_F(DuplicatesTest, ACallThatIsRepeatedHasOneEffect) {
  FrozenScript a(&node_, 1, 1);
  DuplicateCall call{node_.Call(), a.session(), 5000, a.chunks(), 2};
  node_.Post(call);
  const std::vector<ChunkId> made = node_.Finish<AllocateReply>(call.call).chunks;
  call.call = node_.Call();
  node_.Post(call);
  EXPECT_EQ(node_.Finish<AllocateReply>(call.call).chunks, made);
  EXPECT_EQ(Shared(), 2u);
}

TEST_F(DuplicatesTest, ACallThatIsRepeatedWhileItWaitsHasOneEffect) {
  FrozenScript a(&node_, 1, 1);
  Duplicate(a, 1);
  DuplicateCall call{node_.Call(), a.session(), 5000, a.chunks(), 2};
  node_.Post(call);
  const CallId first = call.call;
  call.call = node_.Call();
  node_.Post(call);
  ASSERT_FALSE(node_.Answered(first));
  const std::vector<ChunkId> made = node_.Finish<AllocateReply>(first).chunks;
  EXPECT_EQ(node_.Finish<AllocateReply>(call.call).chunks, made);
  EXPECT_EQ(Shared(), 3u);
}

TEST_F(DuplicatesTest, WhatCannotBeDuplicatedIsRefused) {
  FrozenScript a(&node_, 1, 1);
  const ChunkId chunk = a.chunks()[0];
  EXPECT_THAT(std::string(Refusal(a, node_.Allocate(a.session(), 1), 1).message()),
              HasSubstr("holds nothing yet"));
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(a, {chunk}, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(a, {chunk}, Limits().chunks_per_call + 1)));
  EXPECT_TRUE(absl::IsNotFound(Refusal(a, {ChunkId(77)}, 1)));
  Lease(a, chunk, Access::kRead);
  EXPECT_TRUE(absl::IsAborted(Refusal(a, {chunk}, 1)));
  node_.Release(a.session(), chunk);
  EXPECT_TRUE(Refusal(a, {chunk}, 1).ok());
  Lease(a, chunk, Access::kRead);
  EXPECT_TRUE(Refusal(a, {chunk}, 1).ok()) << "its content is in common already";
  const SessionId named = node_.Open("name", std::chrono::hours(1));
  const DuplicateCall call{node_.Call(), named, 1, node_.Allocate(named, 1), 1};
  node_.Post(call);
  EXPECT_TRUE(absl::IsFailedPrecondition(node_.ReplyTo(call.call).status));
  EXPECT_THAT(std::string(node_.ReplyTo(call.call).status.message()), HasSubstr("leave out"));
}

TEST_F(DuplicatesTest, ASessionThatDiesMeanwhileLeavesNothing) {
  FrozenScript a(&node_, 2, 1);
  const CallId first = Ask(a, a.chunks(), 2);
  a.Dies();
  while (node_.in_flight() > 0) node_.FinishOne();
  EXPECT_TRUE(absl::IsUnavailable(node_.ReplyTo(first).status));
  FrozenScript b(&node_, 2, 1);
  Duplicate(b, 2);
  b.Dies();
  EXPECT_EQ(Allocated(), 0u);
  EXPECT_EQ(node_.memory_segments(), 0u);
}

TEST_F(DuplicatesTest, HomesOfMoreCopiesThanThereIsMemoryForAreMade) {
  FrozenScript a(&node_, 30, 1);
  const std::vector<ChunkId> made = Duplicate(a, 5);
  for (size_t i = 0; i < made.size(); ++i) {
    for (;;) {
      const Reply reply = node_.Fetch(a.session(), made[i], Tier::kHost, Access::kWrite);
      if (reply.status.ok()) break;
      // 128 slots are made at a time.
      ASSERT_TRUE(reply.status.GetPayload(kCallAgain).has_value()) << reply.status;
    }
    node_.Release(a.session(), made[i]);
  }
  EXPECT_EQ(Read(a, made[149]), FrozenValues(30));
}

class SmallSsdTest : public DuplicatesTest {
 protected:
  SmallSsdTest() : DuplicatesTest(/*host_slots=*/32, /*ssd_slots=*/8) {}
};

TEST_F(SmallSsdTest, AWriterWithoutRoomIsToldAndNothingChanges) {
  FrozenScript a(&node_, 4, 1);
  const std::vector<ChunkId> made = Duplicate(a, 3);
  EXPECT_EQ(node_.Allocate(a.session(), 8).size(), 8u) << "duplicates need no place on SSD";
  const Reply reply = node_.Fetch(a.session(), made[5], Tier::kHost, Access::kWrite);
  EXPECT_TRUE(absl::IsResourceExhausted(reply.status)) << reply.status;
  EXPECT_THAT(std::string(reply.status.message()), HasSubstr("ssd share has no slot for a copy"));
  StepCall part;
  part.call = node_.Call();
  part.session = a.session();
  part.chunks = {a.chunks()[0], made[0]};
  part.reads = 1;
  part.part = 7;
  node_.Post(part);
  EXPECT_TRUE(absl::IsResourceExhausted(node_.ReplyTo(part.call).status));
  for (size_t i = 0; i < made.size(); ++i) EXPECT_EQ(Read(a, made[i]), FrozenValues(1 + i % 4));
}

TEST_F(SmallSsdTest, ChunksThatAreFreedMakeRoomForAWriter) {
  FrozenScript a(&node_, 4, 1);
  const std::vector<ChunkId> made = Duplicate(a, 1);
  const std::vector<ChunkId> others = node_.Allocate(a.session(), 8);
  node_.Free(a.session(), others[3]);
  Fill(a, made[2], 50);
  EXPECT_EQ(Read(a, made[2]), FrozenValues(50));
  EXPECT_EQ(a.Read(2), FrozenValues(3));
}

class SmallHostTest : public DuplicatesTest {
 protected:
  SmallHostTest() : DuplicatesTest(/*host_slots=*/20, /*ssd_slots=*/64) {}
};

TEST_F(SmallHostTest, CallsKeepTheRoomThatTheyNeed) {
  FrozenScript a(&node_, 12, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(Refusal(a, a.chunks(), 1)));
  EXPECT_EQ(Shared(), 0u) << "all or none";
  const std::vector<ChunkId> six(a.chunks().begin(), a.chunks().begin() + 6);
  EXPECT_TRUE(Refusal(a, six, 2).ok());
  const std::vector<ChunkId> others = node_.Allocate(a.session(), 15);
  FetchCall fetch;
  fetch.session = a.session();
  fetch.tier = Tier::kHost;
  fetch.access = Access::kWrite;
  fetch.chunks = others;
  fetch.call = node_.Call();
  node_.Post(fetch);
  EXPECT_TRUE(absl::IsResourceExhausted(node_.ReplyTo(fetch.call).status)) << "6 slots are claimed";
  fetch.chunks.resize(14);
  fetch.call = node_.Call();
  node_.Post(fetch);
  EXPECT_EQ(node_.Finish<FetchReply>(fetch.call).leases.size(), 14u);
}

class DuplicatesAtADeviceTest : public TwoScriptsAtADeviceTest {
 protected:
  DuplicatesAtADeviceTest() : TwoScriptsAtADeviceTest(/*count=*/2) {}

  std::vector<ChunkId> Duplicate(uint32_t copies) {
    const DuplicateCall call{node_.Call(), a_.session(), 1000, a_.chunks(), copies};
    node_.Post(call);
    return node_.Finish<AllocateReply>(call.call).chunks;
  }
  MemoryPlace LeaseOf(ChunkId chunk, Access access) {
    const Reply reply = node_.Fetch(a_.session(), chunk, Tier::kDevice, access);
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    return std::get<FetchReply>(reply.value).leases.at(0).place;
  }
};

TEST_F(DuplicatesAtADeviceTest, WhatOnlyTheDeviceHasIsDuplicated) {
  Write(a_, 0, 40);
  node_.Release(a_.session(), a_.chunks()[0]);
  const std::vector<ChunkId> made = Duplicate(2);
  EXPECT_EQ(At(LeaseOf(made[2], Access::kRead)), FrozenValues(40));
  EXPECT_EQ(At(LeaseOf(made[1], Access::kRead)), FrozenValues(2));
}

TEST_F(DuplicatesAtADeviceTest, AChunkOnItsWayToTheDeviceIsDuplicatedWhenItIsThere) {
  // Memory for claims is there afterwards.
  DuplicateCall call{node_.Call(), a_.session(), 1000, {a_.chunks()[1]}, 1};
  node_.Post(call);
  node_.Finish<AllocateReply>(call.call);
  const ChunkId moving = a_.chunks()[0];
  node_.StartMoving(a_.session(), moving);
  ASSERT_EQ(node_.in_flight(), 1u);
  call = {node_.Call(), a_.session(), 1001, {moving}, 1};
  node_.Post(call);
  ASSERT_EQ(node_.in_flight(), 2u);
  node_.FinishNewest();
  EXPECT_FALSE(node_.Answered(call.call))
      << "a transfer reads the slot that is to be the content's";
  const std::vector<ChunkId> made = node_.Finish<AllocateReply>(call.call).chunks;
  EXPECT_EQ(node_.Read(a_.session(), made.at(0), kFrozenElements), FrozenValues(1));
}

// Kernels may be reading there.
TEST_F(DuplicatesAtADeviceTest, AWriterKeepsItsPlaceAndTheOthersTheirBytes) {
  const std::vector<ChunkId> made = Duplicate(2);
  const MemoryPlace read = LeaseOf(made[0], Access::kRead);
  const MemoryPlace written = LeaseOf(made[0], Access::kWrite);
  EXPECT_EQ(read.region, written.region);
  EXPECT_EQ(read.offset, written.offset);
  const std::vector<float> values = FrozenValues(77);
  std::memcpy(node_.At(written), values.data(), kFrozenElements * sizeof(float));
  node_.Release(a_.session(), made[0]);
  EXPECT_EQ(node_.Read(a_.session(), made[0], kFrozenElements), FrozenValues(77));
  EXPECT_EQ(At(LeaseOf(made[2], Access::kRead)), FrozenValues(1));
  EXPECT_EQ(a_.Read(0), FrozenValues(1));
}

}  // namespace
}  // namespace memtide

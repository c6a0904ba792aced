// Common contents of sessions of one user, on an EngineByteHarness: which bytes become one, which
// session sees what, and that memory goes with its last reader.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/testing/frozen_script.h"

namespace memtide {
namespace {

class CommonTest : public testing::Test {
 protected:
  CommonTest() { node_.elastic_ = true; }

  InspectReply Inspect() {
    InspectCall call;
    call.call = node_.Call();
    call.sessions = true;
    node_.Post(call);
    return std::get<InspectReply>(node_.ReplyTo(call.call).value);
  }
  uint64_t Allocated() { return Inspect().kinds[0].allocated / EngineByteHarness::kChunk; }
  uint64_t Shared() { return Inspect().kinds[0].shared / EngineByteHarness::kChunk; }

  const EngineOptions options_{
      {}, EngineByteHarness::kChunk * 96, EngineByteHarness::kChunk * 256, Limits()};
  EngineByteHarness node_{options_};
};

TEST_F(CommonTest, EqualBytesOfTwoSessionsAreKeptOnce) {
  FrozenScript a(&node_, 4, 1), b(&node_, 4, 1);
  EXPECT_TRUE(a.Offer().shared.empty()) << "nobody else has offered them";
  EXPECT_EQ(b.Offer().shared.size(), 4u);
  EXPECT_EQ(a.Offer().shared.size(), 4u);
  EXPECT_EQ(Allocated(), 4u);
  EXPECT_EQ(Shared(), 4u);
  EXPECT_EQ(Inspect().counters.contents_shared, 8u);
  EXPECT_EQ(Inspect().counters.step_parts, 0u) << "no optimizer has stepped";
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(a.Read(i), FrozenValues(1 + i));
    EXPECT_EQ(b.Read(i), FrozenValues(1 + i));
  }
}

TEST_F(CommonTest, TheMemoryOfTheUserIsReadOnlyAndIsSentBeforeItIsLeased) {
  FrozenScript a(&node_, 2, 1), b(&node_, 2, 1);
  a.Offer();
  b.Offer();
  a.Offer();
  ASSERT_FALSE(node_.read_only_regions_.empty());
  for (const FrozenScript* script : {&a, &b}) {
    const Reply reply =
        node_.Fetch(script->session(), script->chunks()[0], Tier::kHost, Access::kRead);
    const RegionId region = std::get<FetchReply>(reply.value).leases[0].place.region;
    EXPECT_EQ(node_.read_only_regions_.count(region), 1u);
    EXPECT_EQ(node_.sent_.count({script->session(), region}), 1u);
  }
}

TEST_F(CommonTest, OtherBytesAreNotSharedAndCostNoCopy) {
  FrozenScript a(&node_, 4, 1), b(&node_, 4, 100);
  const uint64_t segments = node_.memory_segments();
  a.Offer();
  EXPECT_TRUE(b.Offer().shared.empty());
  EXPECT_TRUE(a.Offer().shared.empty());
  EXPECT_EQ(Allocated(), 8u);
  EXPECT_EQ(node_.memory_segments(), segments);
  EXPECT_EQ(node_.in_flight(), 0u);
}

TEST_F(CommonTest, AnEventExaminesAFewWaitingOffersAndTheNextOneTheOthers) {
  EngineOptions options = options_;
  options.limits.chunks_per_call = 4;
  EngineByteHarness node(options);
  node.elastic_ = true;
  FrozenScript a(&node, 4, 1), b(&node, 4, 1);
  a.Offer();
  while (node.in_flight() > 0) node.FinishOne();
  b.Ask();
  node.FinishOne();  // The contents are being made from now on.
  const CallId first = a.Ask(), second = a.Ask();
  EXPECT_FALSE(node.Answered(first));
  node.Wait(std::chrono::seconds(3));
  EXPECT_TRUE(node.Answered(first));
  EXPECT_FALSE(node.Answered(second));
  node.Wait(std::chrono::milliseconds(50));
  EXPECT_TRUE(node.Answered(second));
}

TEST_F(CommonTest, ADaemonThatDrainsLetsNoOfferWait) {
  FrozenScript a(&node_, 4, 1), b(&node_, 4, 1);
  a.Offer();
  while (node_.in_flight() > 0) node_.FinishOne();
  b.Ask();
  node_.FinishOne();  // The contents are being made from now on.
  const CallId offer = a.Ask();
  ASSERT_FALSE(node_.Answered(offer));
  node_.Post(DrainCall{node_.Call()});
  node_.Wait(std::chrono::milliseconds(50));
  EXPECT_TRUE(node_.Answered(offer));
}

TEST_F(CommonTest, WhatIsOfferedAgainIsNotHashedAgain) {
  FrozenScript a(&node_, 4, 1);
  a.Offer();
  const CallId again = a.Ask();
  EXPECT_TRUE(node_.Answered(again));
  a.Fill(0, 7);
  EXPECT_FALSE(node_.Answered(a.Ask())) << "this one has another content since";
}

TEST_F(CommonTest, AWriterGetsACopyAndOthersDoNotSeeWhatItWrites) {
  FrozenScript a(&node_, 2, 1), b(&node_, 2, 1), c(&node_, 2, 1);
  a.Offer();
  for (FrozenScript* script : {&b, &c, &a}) EXPECT_EQ(script->Offer().shared.size(), 2u);
  b.Fill(0, 50);
  EXPECT_EQ(b.Read(0), FrozenValues(50));
  EXPECT_EQ(b.Read(1), FrozenValues(2));
  for (FrozenScript* script : {&a, &c}) EXPECT_EQ(script->Read(0), FrozenValues(1));
  EXPECT_EQ(Allocated(), 3u);
  EXPECT_EQ(Inspect().counters.step_parts, 0u) << "a copy is no step either";
  // The one that has written it back shares it again.
  b.Fill(0, 1);
  EXPECT_EQ(b.Offer().shared.size(), 2u);
  EXPECT_EQ(Allocated(), 2u);
}

TEST_F(CommonTest, AWriterThatReadsMeanwhileKeepsWhatItHasMapped) {
  FrozenScript a(&node_, 1, 1), b(&node_, 1, 1);
  a.Offer();
  b.Offer();
  a.Offer();
  const ChunkId chunk = a.chunks()[0];
  const Reply read = node_.Fetch(a.session(), chunk, Tier::kHost, Access::kRead);
  const MemoryPlace before = std::get<FetchReply>(read.value).leases[0].place;
  const Reply written = node_.Fetch(a.session(), chunk, Tier::kHost, Access::kWrite);
  ASSERT_TRUE(written.status.ok()) << written.status;
  const MemoryPlace after = std::get<FetchReply>(written.value).leases[0].place;
  EXPECT_TRUE(before.region != after.region || before.offset != after.offset);
  // No other session leaves, and no content takes the place, while it is leased.
  b.Dies();
  const std::vector<float> values = FrozenValues(1);
  EXPECT_EQ(std::memcmp(node_.At(before), values.data(), kFrozenElements * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(node_.At(after), values.data(), kFrozenElements * sizeof(float)), 0);
  node_.Release(a.session(), chunk);
  node_.Advance();
  EXPECT_EQ(a.Read(0), FrozenValues(1));
  EXPECT_EQ(Allocated(), 1u);
}

TEST_F(CommonTest, UsersNeverMeet) {
  FrozenScript a(&node_, 2, 1), b(&node_, 2, 1, kOtherUid), c(&node_, 2, 1, kOtherUid);
  a.Offer();
  EXPECT_TRUE(b.Offer().shared.empty());
  EXPECT_TRUE(a.Offer().shared.empty());
  EXPECT_EQ(c.Offer().shared.size(), 2u);
  EXPECT_TRUE(a.Offer().shared.empty()) << "two of another user have them in common";
  EXPECT_EQ(Shared(), 0u);
  b.Offer();
  EXPECT_EQ(Shared(), 2u);
}

TEST_F(CommonTest, BytesAreComparedWhereADigestIsNoProof) {
  node_.plant_collisions_ = true;
  FrozenScript a(&node_, 1, 1), b(&node_, 1, 1), c(&node_, 1, 9);
  a.Offer();
  EXPECT_EQ(b.Offer().shared.size(), 1u);
  EXPECT_TRUE(c.Offer().shared.empty());
  EXPECT_EQ(Inspect().counters.digests_collided, 1u);
  EXPECT_EQ(c.Read(0), FrozenValues(9));
  EXPECT_EQ(a.Offer().shared.size(), 1u);
  EXPECT_EQ(a.Read(0), FrozenValues(1));
}

TEST_F(CommonTest, ManyEqualChunksBecomeOneContent) {
  FrozenScript a(&node_, 1, 0), b(&node_, 1, 0);
  std::vector<ChunkId> zeros = node_.Allocate(b.session(), 40);
  for (const ChunkId chunk : zeros) node_.Fill(b.session(), chunk, FrozenValues(0));
  a.Offer();
  const OfferCall offer{node_.Call(), b.session(), zeros};
  node_.Post(offer);
  node_.FinishUntilAnswered(offer.call);
  EXPECT_EQ(std::get<OfferReply>(node_.ReplyTo(offer.call).value).shared.size(), 40u);
  EXPECT_EQ(Allocated(), 3u) << "the content, and the chunks that were not offered since";
  node_.Fill(b.session(), zeros[7], FrozenValues(5));
  EXPECT_EQ(node_.Read(b.session(), zeros[7], kFrozenElements), FrozenValues(5));
  EXPECT_EQ(node_.Read(b.session(), zeros[8], kFrozenElements), FrozenValues(0));
}

TEST_F(CommonTest, ALeasedChunkStaysAndIsNamed) {
  FrozenScript a(&node_, 2, 1), b(&node_, 2, 1);
  a.Offer();
  node_.Fetch(b.session(), b.chunks()[1], Tier::kHost, Access::kRead);
  OfferReply reply = b.Offer();
  EXPECT_EQ(reply.shared, std::vector<uint32_t>{0});
  EXPECT_EQ(reply.leased, std::vector<uint32_t>{1});
  node_.Release(b.session(), b.chunks()[1]);
  EXPECT_EQ(b.Offer().shared.size(), 2u);
}

TEST_F(CommonTest, WhatIsWrittenWhileItIsComparedIsNotShared) {
  FrozenScript a(&node_, 1, 1), b(&node_, 1, 1);
  a.Offer();
  const CallId offer = b.Ask();
  node_.FinishOne();  // The digest is known, and the copy begins.
  ASSERT_EQ(node_.in_flight(), 1u);
  FetchCall fetch;
  fetch.call = node_.Call();
  fetch.session = b.session();
  fetch.tier = Tier::kHost;
  fetch.access = Access::kWrite;
  fetch.chunks = b.chunks();
  node_.Post(fetch);
  node_.FinishUntilAnswered(fetch.call);
  const MemoryPlace place = std::get<FetchReply>(node_.ReplyTo(fetch.call).value).leases[0].place;
  EXPECT_EQ(node_.read_only_regions_.count(place.region), 0u);
  node_.FinishUntilAnswered(offer);
  EXPECT_TRUE(std::get<OfferReply>(node_.ReplyTo(offer).value).shared.empty());
}

TEST_F(CommonTest, MemoryGoesWithItsLastReader) {
  FrozenScript a(&node_, 4, 1);
  const size_t segments = node_.memory_segments();
  a.Offer();
  {
    FrozenScript b(&node_, 4, 1);
    EXPECT_EQ(b.Offer().shared.size(), 4u);
    EXPECT_EQ(a.Offer().shared.size(), 4u);
    b.Dies();
  }
  EXPECT_EQ(a.Read(3), FrozenValues(4));
  EXPECT_EQ(Allocated(), 4u);
  for (const ChunkId chunk : a.chunks()) node_.Free(a.session(), chunk);
  EXPECT_EQ(Allocated(), 0u);
  EXPECT_LE(node_.memory_segments(), segments);
  EXPECT_TRUE(node_.read_only_regions_.empty());
}

TEST_F(CommonTest, TheMakerOfAContentDiesAndTheNextOneMakesIt) {
  FrozenScript a(&node_, 2, 1), b(&node_, 2, 1), c(&node_, 2, 1);
  a.Offer();
  const CallId of_b = b.Ask();
  node_.FinishOne();
  c.Ask();
  b.Dies();
  while (node_.in_flight() > 0) node_.FinishOne();
  EXPECT_TRUE(absl::IsUnavailable(node_.ReplyTo(of_b).status));
  EXPECT_EQ(c.Offer().shared.size(), 2u);
  EXPECT_EQ(a.Offer().shared.size(), 2u);
  EXPECT_EQ(c.Read(1), FrozenValues(2));
}

TEST_F(CommonTest, ADiscardAndAFreeConcernTheSessionAlone) {
  FrozenScript a(&node_, 3, 1), b(&node_, 3, 1);
  a.Offer();
  b.Offer();
  a.Offer();
  node_.Post(DiscardCall{node_.Call(), a.session(), 1000, {a.chunks()[0]}});
  node_.Free(a.session(), a.chunks()[1]);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(b.Read(i), FrozenValues(1 + i));
  a.Fill(0, 20);
  EXPECT_EQ(a.Read(0), FrozenValues(20));
  EXPECT_EQ(b.Read(0), FrozenValues(1));
}

TEST_F(CommonTest, ACommitOfACommonContentLeavesItToTheOthers) {
  for (const bool keep : {false, true}) {
    FrozenScript a(&node_, 2, 1), b(&node_, 2, 1);
    a.Offer();
    b.Offer();
    a.Offer();
    const ChunkId shadow = node_.Allocate(a.session(), 1)[0];
    node_.Fill(a.session(), shadow, FrozenValues(30));
    CommitCall commit;
    commit.call = node_.Call();
    commit.session = a.session();
    commit.step = 1;
    commit.chunks = {a.chunks()[0]};
    commit.shadows = {shadow};
    commit.keep_old_content = keep;
    node_.Post(commit);
    ASSERT_TRUE(node_.ReplyTo(commit.call).status.ok()) << node_.ReplyTo(commit.call).status;
    EXPECT_EQ(a.Read(0), FrozenValues(30));
    EXPECT_EQ(b.Read(0), FrozenValues(1));
    if (keep) {
      EXPECT_EQ(node_.Read(a.session(), shadow, kFrozenElements), FrozenValues(1));
    }
    node_.Fill(a.session(), shadow, FrozenValues(40));
    EXPECT_EQ(b.Read(0), FrozenValues(1));
    a.Dies();
    b.Dies();
  }
}

TEST_F(CommonTest, NamedJobsAndRanksShareNothingThisWay) {
  for (const uint32_t ranks : {0u, 2u}) {
    const SessionId session = node_.OpenRank("name" + std::to_string(ranks), Duration(0), 0, ranks);
    const std::vector<ChunkId> chunks = node_.Allocate(session, 1);
    const OfferCall offer{node_.Call(), session, chunks};
    node_.Post(offer);
    EXPECT_TRUE(absl::IsFailedPrecondition(node_.ReplyTo(offer.call).status));
  }
}

TEST_F(CommonTest, WithoutMemoryASessionKeepsItsOwn) {
  const EngineOptions small{
      {}, EngineByteHarness::kChunk * 26, EngineByteHarness::kChunk * 256, Limits()};
  EngineByteHarness node(small);
  node.elastic_ = true;
  FrozenScript a(&node, 8, 1), b(&node, 8, 1);
  a.Offer();
  const OfferReply reply = b.Offer();
  EXPECT_LT(reply.shared.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(a.Read(i), FrozenValues(1 + i));
    EXPECT_EQ(b.Read(i), FrozenValues(1 + i));
  }
}

}  // namespace
}  // namespace memtide

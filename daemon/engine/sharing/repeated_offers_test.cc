// Sessions that write the same, each at its device, and whose offers the engine repeats.
#include <cstring>
#include <map>
#include <variant>
#include <vector>

#include "daemon/engine/testing/frozen_script.h"
#include "gmock/gmock.h"

namespace memtide {
namespace {

using testing::ElementsAre;

class RepeatedOffersTest : public TwoScriptsAtADeviceTest {
 protected:
  static constexpr uint32_t kChunks = 3;

  RepeatedOffersTest() : TwoScriptsAtADeviceTest(kChunks) {}

  void Release(const FrozenScript& script, size_t i) {
    node_.Release(script.session(), script.chunks()[i]);
  }
  // One step of training: all chunks are written.
  void Step(const FrozenScript& script, float first) {
    for (size_t i = 0; i < kChunks; ++i) {
      Write(script, i, first + static_cast<float>(i));
      Release(script, i);
    }
  }
  // Lets the engine do what it has to.
  void Settle() {
    for (int i = 0; i < 60; ++i) node_.Advance();
  }
  InspectReply Inspect() {
    const InspectCall inspect{node_.Call()};
    node_.Post(inspect);
    return std::get<InspectReply>(node_.ReplyTo(inspect.call).value);
  }
  // Chunks of memory that are not needed, as sessions have them in common.
  uint64_t Saved() {
    Bytes saved;
    for (const KindUsage& kind : Inspect().kinds) saved += kind.shared;
    return saved / EngineByteHarness::kChunk;
  }
  // A step part that writes the first values of a chunk, in host memory.
  void Part(const FrozenScript& script, ChunkId chunk, const std::vector<float>& values) {
    StepCall part;
    part.call = node_.Call();
    part.session = script.session();
    part.chunks = {chunk};
    part.part = ++parts_;
    node_.Post(part);
    const MemoryPlace place = node_.Finish<PartReply>(part.call).places.at(0);
    std::memcpy(node_.At(place), values.data(), values.size() * sizeof(float));
    node_.Post(EndPartCall{node_.Call(), script.session(), part.part, /*computed=*/true});
  }
  // A step that is made in shadow chunks, in host memory, and committed.
  void StepInShadows(const FrozenScript& script, std::vector<ChunkId> shadows, float first,
                     bool keep_old_content = false) {
    for (size_t i = 0; i < kChunks; ++i) {
      node_.Fill(script.session(), shadows[i], FrozenValues(first + static_cast<float>(i)));
    }
    CommitCall commit;
    commit.call = node_.Call();
    commit.session = script.session();
    commit.step = ++steps_[script.session()];
    commit.chunks = script.chunks();
    commit.shadows = std::move(shadows);
    commit.keep_old_content = keep_old_content;
    node_.Post(commit);
    ASSERT_TRUE(node_.ReplyTo(commit.call).status.ok()) << node_.ReplyTo(commit.call).status;
  }
  void OfferAll() {
    a_.OfferWhenWritten();
    b_.OfferWhenWritten();
  }

  std::map<SessionId, uint64_t> steps_;  // Committed ones.
  uint64_t parts_ = 0;
};

TEST_F(RepeatedOffersTest, WhatBothHaveIsKeptOnceWithoutAnotherCall) {
  OfferAll();
  Settle();
  EXPECT_EQ(Saved(), kChunks);
}

TEST_F(RepeatedOffersTest, WhatBothWriteIsKeptOnceAfterEachStep) {
  OfferAll();
  for (const float first : {10, 20, 30}) {
    Step(a_, first);
    Settle();
    EXPECT_EQ(Saved(), 0u) << "only one of them has written";
    Step(b_, first);
    Settle();
    EXPECT_EQ(Saved(), kChunks);
    for (size_t i = 0; i < kChunks; ++i) {
      EXPECT_EQ(a_.Read(i), FrozenValues(first + static_cast<float>(i)));
      EXPECT_EQ(b_.Read(i), FrozenValues(first + static_cast<float>(i)));
    }
  }
}

// It has the same bytes as the content, so that nothing has to come back for the next forward pass.
TEST_F(RepeatedOffersTest, TheDeviceKeepsItsCopy) {
  OfferAll();
  Step(a_, 10);
  Step(b_, 10);
  Settle();
  ASSERT_EQ(Saved(), kChunks);
  for (const FrozenScript* const script : {&a_, &b_}) {
    FetchCall fetch;
    fetch.call = node_.Call();
    fetch.session = script->session();
    fetch.tier = Tier::kDevice;
    fetch.access = Access::kRead;
    fetch.chunks = script->chunks();
    node_.Post(fetch);
    ASSERT_TRUE(node_.Answered(fetch.call)) << "a copy is on its way";
    const auto leases = std::get<FetchReply>(node_.ReplyTo(fetch.call).value).leases;
    for (size_t i = 0; i < kChunks; ++i) {
      EXPECT_EQ(At(leases.at(i).place), FrozenValues(10 + static_cast<float>(i)));
    }
  }
  EXPECT_EQ(Saved(), kChunks);
}

TEST_F(RepeatedOffersTest, WhatOneWritesInItsOwnWayStaysItsOwn) {
  OfferAll();
  Step(a_, 10);
  Step(b_, 10);
  Write(b_, 1, 77);
  Release(b_, 1);
  Settle();
  EXPECT_EQ(Saved(), kChunks - 1);
  EXPECT_EQ(a_.Read(1), FrozenValues(11));
  EXPECT_EQ(b_.Read(1), FrozenValues(77));
}

// A client keeps leases that it does not use.
TEST_F(RepeatedOffersTest, ALeaseByWhichAChunkWasWrittenIsRevoked) {
  OfferAll();
  Settle();
  Write(a_, 0, 10);
  Lease(a_, 1, Access::kRead);
  node_.revokes_.clear();
  node_.Wait(std::chrono::milliseconds(100));
  ASSERT_EQ(node_.revokes_.size(), 1u);
  EXPECT_EQ(node_.revokes_[0].session, a_.session());
  EXPECT_THAT(node_.revokes_[0].chunks, ElementsAre(a_.chunks()[0]));
  node_.Wait(std::chrono::milliseconds(100));
  EXPECT_EQ(node_.revokes_.size(), 1u) << "the client remembers it";
}

TEST_F(RepeatedOffersTest, ALeaseThatIsNotGrantedYetIsNotRevoked) {
  OfferAll();
  Settle();
  Write(a_, 0, 10);
  Release(a_, 0);
  FetchCall fetch;
  fetch.call = node_.Call();
  fetch.session = a_.session();
  fetch.tier = Tier::kHost;
  fetch.access = Access::kRead;
  fetch.chunks = {a_.chunks()[0]};
  node_.Post(fetch);
  ASSERT_FALSE(node_.Answered(fetch.call));
  node_.revokes_.clear();
  node_.Wait(std::chrono::milliseconds(100));
  EXPECT_TRUE(node_.revokes_.empty());
}

// The client may hold one while it waits for another chunk of the offer.
TEST_F(RepeatedOffersTest, AnOfferWaitsForNoLease) {
  Lease(a_, 0, Access::kRead);
  OfferAll();
  Settle();
  EXPECT_EQ(Inspect().waiting_calls, 0u);
  EXPECT_EQ(Saved(), kChunks - 1);
  ASSERT_FALSE(node_.revokes_.empty()) << "the client may not use it";
  EXPECT_THAT(node_.revokes_.back().chunks, ElementsAre(a_.chunks()[0]));
  Release(a_, 0);
  Settle();
  EXPECT_EQ(Saved(), kChunks);
}

TEST(RepeatedOffersInLittleMemoryTest, AnOfferWaitsForNoRoom) {
  constexpr Bytes kChunk = EngineByteHarness::kChunk;
  EngineByteHarness node({{kChunk * 16}, kChunk * 28, kChunk * 64, Limits()});
  node.elastic_ = true;
  node.device_share_ = kChunk * 4;
  FrozenScript a(&node, 3, 1), b(&node, 3, 1);
  const std::vector<ChunkId> others = node.Allocate(a.session(), 28);
  CallId last;
  for (size_t i = 0; i < others.size() && (i == 0 || node.Answered(last)); ++i) {
    const FetchCall fetch{node.Call(), a.session(), Tier::kHost, Access::kRead, {others[i]}};
    node.Post(fetch);
    last = fetch.call;
    for (int step = 0; step < 20; ++step) node.Advance();
  }
  ASSERT_FALSE(node.Answered(last)) << "all room for leases is taken";
  a.OfferWhenWritten();
  b.OfferWhenWritten();
  for (int step = 0; step < 60; ++step) node.Advance();
  const InspectCall inspect{node.Call()};
  node.Post(inspect);
  EXPECT_EQ(std::get<InspectReply>(node.ReplyTo(inspect.call).value).waiting_calls, 1u);
}

TEST_F(RepeatedOffersTest, ASessionMayEndAtAnyMomentOfAnOffer) {
  for (int events = 0; events < 12; ++events) {
    FrozenScript c(&node_, kChunks, 50), d(&node_, kChunks, 50);
    c.OfferWhenWritten();
    d.OfferWhenWritten();
    for (int i = 0; i < events; ++i) node_.Advance();
    c.Dies();
    Settle();
    EXPECT_EQ(Saved(), 0u);
    for (size_t i = 0; i < kChunks; ++i) {
      EXPECT_EQ(d.Read(i), FrozenValues(50 + static_cast<float>(i)));
    }
    d.Dies();
    Settle();
  }
}

TEST_F(RepeatedOffersTest, WhatACommitGivesBothIsKeptOnce) {
  const std::vector<ChunkId> of_a = node_.Allocate(a_.session(), kChunks);
  const std::vector<ChunkId> of_b = node_.Allocate(b_.session(), kChunks);
  OfferAll();
  Settle();
  for (const float first : {10, 20}) {
    ASSERT_EQ(Saved(), kChunks);
    StepInShadows(a_, of_a, first);
    EXPECT_EQ(Saved(), 0u) << "nobody keeps the old content";
    StepInShadows(b_, of_b, first);
    Settle();
    for (size_t i = 0; i < kChunks; ++i) {
      EXPECT_EQ(a_.Read(i), FrozenValues(first + static_cast<float>(i)));
      EXPECT_EQ(b_.Read(i), FrozenValues(first + static_cast<float>(i)));
    }
  }
}

// A step writes its tensors, and what is between them stays as it was in memory.
TEST_F(RepeatedOffersTest, WhatNoStepWritesIsZeroInTheShadowChunks) {
  const std::vector<ChunkId> shadows = node_.Allocate(a_.session(), kChunks);
  OfferAll();
  Settle();
  StepInShadows(a_, shadows, 10);
  Part(a_, shadows[0], std::vector<float>(2 * kFrozenElements, 7.0f));
  StepInShadows(a_, shadows, 20);
  Settle();
  Part(a_, shadows[0], FrozenValues(30));
  const std::vector<float> values = node_.Read(a_.session(), shadows[0], 2 * kFrozenElements);
  EXPECT_EQ(std::vector<float>(values.begin() + kFrozenElements, values.end()),
            std::vector<float>(kFrozenElements, 0.0f));
}

TEST_F(RepeatedOffersTest, ACommitMayKeepTheOldContentInTheShadowChunks) {
  const std::vector<ChunkId> shadows = node_.Allocate(a_.session(), kChunks);
  OfferAll();
  Settle();
  StepInShadows(a_, shadows, 10, /*keep_old_content=*/true);
  EXPECT_EQ(Saved(), kChunks) << "the other one has the old content, too";
  for (size_t i = 0; i < kChunks; ++i) {
    EXPECT_EQ(a_.Read(i), FrozenValues(10 + static_cast<float>(i)));
    EXPECT_EQ(node_.Read(a_.session(), shadows[i], kFrozenElements),
              FrozenValues(1 + static_cast<float>(i)));
  }
}

// The chunk has what the shadow chunk had, which has no home of its own then.
TEST_F(RepeatedOffersTest, ACommitNeedsNoMemory) {
  const std::vector<ChunkId> shadows = node_.Allocate(a_.session(), kChunks);
  OfferAll();
  Settle();
  for (size_t i = 0; i < kChunks; ++i) node_.Fill(a_.session(), shadows[i], FrozenValues(0));
  while (!node_.Allocate(a_.session(), 1).empty()) continue;
  StepInShadows(a_, shadows, 10);
  for (size_t i = 0; i < kChunks; ++i) {
    EXPECT_EQ(a_.Read(i), FrozenValues(10 + static_cast<float>(i)));
    EXPECT_EQ(b_.Read(i), FrozenValues(1 + static_cast<float>(i)));
  }
}

// Each offer costs a copy from the device, and a hash.
TEST_F(RepeatedOffersTest, WhatIsNeverAlikeIsOfferedNoMore) {
  OfferAll();
  for (int step = 0; step < 20; ++step) {
    Step(a_, 10.0f + static_cast<float>(step));
    Settle();
  }
  const Bytes before = Inspect().counters.device_to_host;
  Step(a_, 100);
  Settle();
  EXPECT_EQ(Inspect().counters.device_to_host, before) << "it stays at the device";
}

TEST_F(RepeatedOffersTest, AFreedChunkIsOfferedNoMore) {
  OfferAll();
  Step(a_, 10);
  Step(b_, 10);
  node_.Free(a_.session(), a_.chunks()[0]);
  Settle();
  EXPECT_EQ(Saved(), kChunks - 1);
  EXPECT_EQ(b_.Read(0), FrozenValues(10));
}

}  // namespace
}  // namespace memtide

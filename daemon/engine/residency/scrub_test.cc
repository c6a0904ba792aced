// When contents at rest are verified.
#include <map>
#include <string>
#include <vector>

#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr Duration kMoment = std::chrono::milliseconds(10);

class ScrubTest : public testing::Test {
 protected:
  static EngineOptions Options() {
    EngineOptions options{{}, kChunk * 4, kChunk * 64, Limits()};
    options.verify = Verify::kKept;
    return options;
  }
  // `count` chunks on SSD, with sums if they are to be kept.
  void Store(uint32_t count, Duration time_to_live = std::chrono::hours(1)) {
    OpenCall open;
    open.job_name = "job";
    open.time_to_live = time_to_live;
    session_ = engine_.OpenAs(open);
    chunks_ = engine_.Allocate(session_, count);
    for (const ChunkId chunk : chunks_) {
      engine_.Fetch(session_, {chunk}, Access::kWrite, Tier::kHost);
      engine_.FinishTransfers();
      engine_.Release(session_, {chunk});
    }
    engine_.Post(EvictCall{engine_.Call(), session_, Tier::kSsd, chunks_});
    engine_.FinishTransfers();
  }
  bool Scrubs() const {
    return engine_.transfers_.size() == 1 &&
           engine_.transfers_[0].kind == StartTransfer::Kind::kVerifySsd;
  }

  EngineHarness engine_{Options()};
  SessionId session_;
  std::vector<ChunkId> chunks_;
};

TEST_F(ScrubTest, AHundredthOfTheDrivesTimeIsUsed) {
  Store(3);
  int scrubs = 0;
  for (int i = 0; i < 10000; ++i) {
    engine_.Wait(kMoment);
    if (!Scrubs()) continue;
    ++scrubs;
    engine_.Wait(kMoment);  // How long the read takes.
    engine_.FinishOne();
  }
  const int moments = 10000 + scrubs;
  EXPECT_LE(scrubs, moments / 100 + 1);
  EXPECT_GE(scrubs, moments / 100 - 3) << "and hardly less";
  EXPECT_EQ(engine_.Inspect().counters.scrubbed, kChunk * scrubs);
}

TEST_F(ScrubTest, EveryContentHasItsTurn) {
  Store(3);
  std::map<uint64_t, int> scrubs;
  for (int i = 0; i < 2000; ++i) {
    engine_.Wait(kMoment);
    if (Scrubs()) ++scrubs[engine_.transfers_[0].store.offset.count()];
    engine_.FinishTransfers();
  }
  ASSERT_EQ(scrubs.size(), 3u);
  for (const auto& [offset, count] : scrubs) EXPECT_GT(count, 100) << offset;
}

TEST_F(ScrubTest, WhatHasNoSumsIsNotRead) {
  Store(2, Duration(0));
  for (int i = 0; i < 1000; ++i) engine_.Wait(kMoment);
  EXPECT_TRUE(engine_.transfers_.empty());
}

TEST_F(ScrubTest, ACallThatWaitsForTheChunkHurriesTheScrub) {
  Store(1);
  engine_.Wait(kMoment);
  ASSERT_TRUE(Scrubs());
  const TransferId scrub = engine_.transfers_[0].transfer;
  const CallId fetch = engine_.Fetch(session_, chunks_, Access::kRead, Tier::kHost);
  ASSERT_EQ(engine_.awaited_.size(), 1u);
  EXPECT_EQ(engine_.awaited_[0].transfer, scrub);
  engine_.FinishTransfers();
  EXPECT_EQ(engine_.CodeOf(fetch), absl::StatusCode::kOk);
}

TEST_F(ScrubTest, AChunkThatIsFreedUnderAScrubIsGoneAtItsEnd) {
  Store(2);
  engine_.Wait(kMoment);
  ASSERT_TRUE(Scrubs());
  engine_.Post(FreeCall{engine_.Call(), session_, 1000, chunks_});
  engine_.FinishTransfers();
  EXPECT_EQ(engine_.Inspect().chunk_count, 0u);
  for (int i = 0; i < 100; ++i) engine_.Wait(kMoment);
  EXPECT_TRUE(engine_.transfers_.empty());
}

TEST_F(ScrubTest, WhatIsWrittenAnewUnderAScrubIsNotJudgedByIt) {
  Store(1);
  engine_.Wait(kMoment);
  ASSERT_TRUE(Scrubs());
  const StartTransfer scrub = engine_.transfers_[0];
  engine_.transfers_.clear();
  DiscardCall discard{engine_.Call(), session_, 1000, chunks_};
  engine_.Post(discard);
  engine_.Post(TransferDone{scrub.transfer, absl::DataLossError("wrong"), {}, true});
  EXPECT_EQ(engine_.Inspect().counters.wrong_bytes, 1u);
  EXPECT_EQ(engine_.Inspect().counters.scrubbed, Bytes(0));
  EXPECT_TRUE(engine_.bad_copies_.empty());
}

}  // namespace
}  // namespace memtide

// On a GPU chunks come back to the slots that they had.
#include <algorithm>
#include <deque>
#include <set>
#include <vector>

#include "daemon/engine/testing/engine_harness.h"

namespace memtide {
namespace {

constexpr uint32_t kChunks = 24;

class FixedSlotsTest : public testing::Test, public EngineHarness {
 protected:
  FixedSlotsTest() : EngineHarness(Options()) {
    OpenCall open;
    open.device_share = kChunk * 12;
    open.host_share = kChunk * 32;
    open.device_memory = MemoryKind::kCudaDescriptor;
    session_ = OpenAs(open);
    chunks_ = Allocate(session_, kChunks);
  }
  static EngineOptions Options() {
    EngineOptions options{{kChunk * 12}, kChunk * 32, Bytes(0), Limits()};
    options.device_kinds = {MemoryKind::kCudaDescriptor};
    return options;
  }

  // Uses all chunks in their order, as a client does that holds six leases at most, and releases
  // what is named as leaving. Returns the region of each.
  std::vector<RegionId> Iterate() {
    std::vector<RegionId> regions;
    for (uint32_t n = 0; n < kChunks; ++n) {
      FetchCall fetch{Call(), session_};
      fetch.tier = Tier::kDevice;
      fetch.access = Access::kWrite;
      fetch.chunks = {chunks_[n]};
      fetch.moments.emplace_back();
      fetch.moments[0].uses = {{chunks_[n], Access::kWrite}};
      Post(fetch);
      FinishTransfers();
      const FetchReply reply = std::get<FetchReply>(ReplyTo(fetch.call).value);
      regions.push_back(reply.leases.at(0).place.region);
      leaving_ += reply.leaving;
      ahead_.insert(reply.ahead.writes.begin(), reply.ahead.writes.end());
      EXPECT_TRUE(reply.ahead.reads.empty()) << "each use writes";
      const auto held = std::find(held_.begin(), held_.end(), chunks_[n]);
      if (ahead_.erase(chunks_[n]) > 0 || held != held_.end()) ++leased_before_;
      if (held != held_.end()) held_.erase(held);
      held_.push_back(chunks_[n]);
      for (uint32_t i = 0; i < reply.leaving; ++i) {
        const auto found = std::find(held_.begin(), held_.end(), reply.eviction_hints[i]);
        if (found == held_.end() || *found == chunks_[n]) continue;
        Release(session_, {*found});
        held_.erase(found);
      }
      if (held_.size() > 6) {
        Release(session_, {held_.front()});
        held_.pop_front();
      }
      Wait(std::chrono::milliseconds(20));
      FinishTransfers();
      Report();
    }
    ReportCall end{Call(), session_};
    end.moments.emplace_back();
    end.moments[0].continues = end.moments[0].ends_iteration = true;
    Post(end);
    FinishTransfers();
    return regions;
  }

  // The client's thread reports, and learns what has come since the last answer.
  void Report() {
    const ReportCall report{Call(), session_};
    Post(report);
    const ChunksAhead ahead = std::get<ReportReply>(ReplyTo(report.call).value).ahead;
    ahead_.insert(ahead.writes.begin(), ahead.writes.end());
  }

  SessionId session_;
  std::vector<ChunkId> chunks_;
  std::deque<ChunkId> held_;
  std::set<ChunkId> ahead_;  // Named as ready, and not used since.
  size_t leaving_ = 0;
  size_t leased_before_ = 0;  // Uses of chunks that were leased still, or could be ahead.
};

TEST_F(FixedSlotsTest, AChunkComesBackToItsSlotInEachIteration) {
  for (int i = 0; i < 8; ++i) Iterate();
  EXPECT_GT(leaving_, 0u);
  const std::vector<RegionId> once = Iterate();
  EXPECT_EQ(Iterate(), once);
  EXPECT_EQ(Iterate(), once);
}

TEST_F(FixedSlotsTest, ChunksThatAreThereAreNamedAheadOfTheirUses) {
  for (int i = 0; i < 8; ++i) Iterate();
  leased_before_ = 0;
  Iterate();
  EXPECT_GE(leased_before_, kChunks - 2);
}

TEST_F(FixedSlotsTest, TheNextChunksOfASlotComeBeforeTheyAreUsed) {
  for (int i = 0; i < 8; ++i) Iterate();
  const uint64_t before = Inspect().counters.fetch_hits;
  Iterate();
  EXPECT_GE(Inspect().counters.fetch_hits - before, kChunks - 2);
}

}  // namespace
}  // namespace memtide

// The audit: the engine checks its own invariants at each tick, a piece at a time.
#include <variant>
#include <vector>

#include "daemon/engine/dispatcher.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr Bytes kAuditedChunk = MiB(2);

// An engine whose edges do at once what it asks for. Unlike EngineHarness, it checks no invariants.
class PlainEngine {
 public:
  explicit PlainEngine(const EngineOptions& options) : engine_(options) {}

  void Post(const Event& event) {
    std::vector<Effect> effects;
    engine_.Handle(now_, event, &effects);
    for (Effect& effect : effects) {
      if (auto* make = std::get_if<MakeRegion>(&effect)) {
        Post(RegionMade{make->region, absl::OkStatus()});
      } else if (auto* store = std::get_if<MakeStore>(&effect)) {
        Post(StoreMade{store->store, absl::OkStatus()});
      } else if (auto* transfer = std::get_if<StartTransfer>(&effect)) {
        Post(TransferDone{transfer->transfer, absl::OkStatus()});
      } else if (auto* reply = std::get_if<Reply>(&effect)) {
        EXPECT_TRUE(reply->status.ok()) << reply->status;
        if (auto* allocated = std::get_if<AllocateReply>(&reply->value)) {
          chunks_.insert(chunks_.end(), allocated->chunks.begin(), allocated->chunks.end());
        }
      }
    }
  }
  void Open(SessionId session) {
    Post(ClientConnected{session, 1000, 1});
    OpenCall open{CallId(++calls_), session};
    open.chunk_size = kAuditedChunk;
    open.device_share = kAuditedChunk * 4;
    open.host_share = kAuditedChunk * 4;
    open.ssd_share = kAuditedChunk * 2048;
    Post(open);
  }
  void Allocate(SessionId session, uint32_t count) {
    Post(AllocateCall{CallId(++calls_), session, ++calls_, count});
  }
  void Touch(SessionId session, ChunkId chunk) {
    FetchCall fetch;
    fetch.call = CallId(++calls_);
    fetch.session = session;
    fetch.tier = Tier::kDevice;
    fetch.access = Access::kWrite;
    fetch.chunks = {chunk};
    Post(fetch);
    Post(ReleaseCall{CallId(++calls_), session, ++calls_, {chunk}});
  }
  void Tick() {
    now_ += std::chrono::milliseconds(50);
    Post(memtide::Tick{});
  }
  const std::vector<ChunkId>& chunks() const { return chunks_; }
  uint64_t audits() const { return engine_.audit().passes(); }

 private:
  Dispatcher engine_;
  Instant now_{std::chrono::seconds(1)};
  uint64_t calls_ = 0;
  std::vector<ChunkId> chunks_;
};

EngineOptions TwoJobs() {
  EngineOptions options;
  options.device_capacities = {kAuditedChunk * 8};
  options.host_capacity = kAuditedChunk * 8;
  options.ssd_capacity = kAuditedChunk * 4096;
  return options;
}

TEST(AuditTest, GoesOverEverythingAgainAndAgain) {
  PlainEngine engine(TwoJobs());
  engine.Tick();
  engine.Tick();
  EXPECT_EQ(engine.audits(), 2u) << "there is nothing to check";
  engine.Open(SessionId(1));
  engine.Open(SessionId(2));
  engine.Allocate(SessionId(1), 1000);
  engine.Allocate(SessionId(2), 1000);
  const uint64_t before = engine.audits();
  for (int i = 0; i < 11; ++i) engine.Tick();
  EXPECT_EQ(engine.audits(), before + 1) << "eight pieces of chunks, two jobs, and the end";
}

TEST(AuditTest, WorkOfATickIsBounded) {
  PlainEngine engine(TwoJobs());
  engine.Open(SessionId(1));
  engine.Allocate(SessionId(1), 2000);
  const uint64_t before = engine.audits();
  for (int i = 0; i < 2000 / 256 + 1; ++i) {
    engine.Tick();
    EXPECT_EQ(engine.audits(), before);
  }
}

// Mutants of the engine break moves in both directions, in a full device (tools/mutants.txt).
TEST(AuditTest, APassOverAllFindsWhatOneEventBroke) {
  PlainEngine engine(TwoJobs());
  engine.Open(SessionId(1));
  engine.Allocate(SessionId(1), 16);
  for (int round = 0; round < 2; ++round) {
    for (const ChunkId chunk : engine.chunks()) engine.Touch(SessionId(1), chunk);
  }
  const uint64_t before = engine.audits();
  for (int i = 0; i < 10; ++i) engine.Tick();
  EXPECT_GT(engine.audits(), before);
}

}  // namespace
}  // namespace memtide

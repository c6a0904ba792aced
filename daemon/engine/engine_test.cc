#include "daemon/engine/engine.h"

#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr Bytes kChunk = MiB(2);

// A node of one engine whose transfers end when the test says so.
class Node {
 public:
  explicit Node(EngineOptions options) : engine_(options) {}

  void Post(const Event& event) {
    std::vector<Effect> effects;
    engine_.Handle(now_, event, &effects);
    engine_.CheckInvariants();
    for (Effect& effect : effects) Take(std::move(effect));
  }
  void Wait(Duration time) {
    now_ += time;
    Post(Tick{});
  }
  // Ends transfers, and those that follow from them, until none is in flight.
  void FinishTransfers(absl::Status status = absl::OkStatus()) {
    while (!transfers_.empty()) FinishOne(status);
  }
  void FinishOne(absl::Status status = absl::OkStatus()) {
    const TransferId transfer = transfers_.front().transfer;
    transfers_.erase(transfers_.begin());
    Post(TransferDone{transfer, std::move(status)});
  }

  CallId Call() { return CallId(++last_call_); }
  // The reply to a call; the test fails where there is none.
  const Reply& ReplyTo(CallId call) {
    EXPECT_EQ(replies_.count(call), 1u) << "call " << call << " is not answered";
    return replies_[call];
  }
  bool Answered(CallId call) const { return replies_.count(call) > 0; }
  absl::StatusCode CodeOf(CallId call) { return ReplyTo(call).status.code(); }

  // Opens a session with a job of its own.
  SessionId Open(uint32_t uid = 1000, std::string job = "") {
    const SessionId session(++last_session_);
    Post(ClientConnected{session, uid, 1});
    OpenCall open;
    open.call = Call();
    open.session = session;
    open.chunk_size = kChunk;
    open.job_name = std::move(job);
    Post(open);
    EXPECT_TRUE(ReplyTo(open.call).status.ok()) << ReplyTo(open.call).status;
    return session;
  }
  std::vector<ChunkId> Allocate(SessionId session, uint32_t count, uint64_t request_id = 0) {
    AllocateCall allocate{Call(), session, request_id == 0 ? ++last_request_ : request_id, count};
    Post(allocate);
    const auto* reply = std::get_if<AllocateReply>(&ReplyTo(allocate.call).value);
    return reply == nullptr ? std::vector<ChunkId>() : reply->chunks;
  }
  CallId Fetch(SessionId session, std::vector<ChunkId> chunks, Access access = Access::kRead,
               Tier tier = Tier::kDevice) {
    FetchCall fetch;
    fetch.call = Call();
    fetch.session = session;
    fetch.tier = tier;
    fetch.access = access;
    fetch.chunks = std::move(chunks);
    Post(fetch);
    return fetch.call;
  }
  CallId Release(SessionId session, std::vector<ChunkId> chunks) {
    ReleaseCall release{Call(), session, ++last_request_, std::move(chunks)};
    Post(release);
    return release.call;
  }
  // Leases, with all transfers done, and releases again.
  void Touch(SessionId session, ChunkId chunk, Access access) {
    const CallId fetch = Fetch(session, {chunk}, access);
    FinishTransfers();
    EXPECT_EQ(CodeOf(fetch), absl::StatusCode::kOk) << ReplyTo(fetch).status;
    Release(session, {chunk});
  }
  InspectReply Inspect() {
    InspectCall inspect;
    inspect.call = Call();
    Post(inspect);
    return std::get<InspectReply>(ReplyTo(inspect.call).value);
  }

  // Makes memory that was held back.
  void FinishMemory() {
    std::vector<Event> made;
    made.swap(held_memory_);
    for (const Event& event : made) Post(event);
  }

  std::vector<StartTransfer> transfers_;
  std::vector<Revoke> revokes_;
  std::vector<RegionId> dropped_;
  bool fail_memory_ = false;
  bool hold_memory_ = false;

 private:
  void Take(Effect effect) {
    const absl::Status memory =
        fail_memory_ ? absl::ResourceExhaustedError("no memory") : absl::OkStatus();
    if (auto* reply = std::get_if<Reply>(&effect)) {
      EXPECT_TRUE(replies_.emplace(reply->call, *reply).second) << "answered twice";
    } else if (auto* region = std::get_if<MakeRegion>(&effect)) {
      const RegionMade made{region->region, memory};
      hold_memory_ ? held_memory_.push_back(made) : Post(made);
    } else if (auto* store = std::get_if<MakeStore>(&effect)) {
      Post(StoreMade{store->store, memory});
    } else if (auto* drop = std::get_if<DropRegion>(&effect)) {
      dropped_.push_back(drop->region);
      Post(RegionDropped{drop->region});
    } else if (auto* drop = std::get_if<DropStore>(&effect)) {
      Post(StoreDropped{drop->store});
    } else if (auto* transfer = std::get_if<StartTransfer>(&effect)) {
      transfers_.push_back(*transfer);
    } else if (auto* revoke = std::get_if<Revoke>(&effect)) {
      revokes_.push_back(*revoke);
    }
  }

  Engine engine_;
  std::vector<Event> held_memory_;
  Instant now_{std::chrono::seconds(1)};
  std::map<CallId, Reply> replies_;
  uint64_t last_call_ = 0, last_session_ = 0, last_request_ = 0;
};

EngineOptions ThreeTiers() { return {kChunk * 4, kChunk * 4, kChunk * 64, Limits()}; }

TEST(EngineTest, AFetchOfAResidentChunkMovesNothing) {
  Node node(ThreeTiers());
  const SessionId session = node.Open();
  const ChunkId chunk = node.Allocate(session, 1)[0];
  node.Touch(session, chunk, Access::kWrite);
  const CallId again = node.Fetch(session, {chunk});
  EXPECT_TRUE(node.transfers_.empty());
  EXPECT_EQ(node.CodeOf(again), absl::StatusCode::kOk);
  EXPECT_EQ(node.Inspect().counters.fetch_hits, 1u);
}

TEST(EngineTest, AVictimThatWasOnlyReadLeavesWithoutAWrite) {
  Node node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 12);
  for (const ChunkId chunk : chunks) node.Touch(session, chunk, Access::kWrite);
  for (const ChunkId chunk : chunks) node.Touch(session, chunk, Access::kRead);
  const Bytes written = node.Inspect().counters.ssd_written;
  for (const ChunkId chunk : chunks) node.Touch(session, chunk, Access::kRead);
  EXPECT_EQ(node.Inspect().counters.ssd_written, written);
}

TEST(EngineTest, AChunkOnSsdReachesTheDeviceThroughAFullHost) {
  Node node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 12);
  for (const ChunkId chunk : chunks) node.Touch(session, chunk, Access::kWrite);
  const CallId fetch = node.Fetch(session, {chunks[0], chunks[1], chunks[2]});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kOk);
}

TEST(EngineTest, RepeatingARequestHasOneEffectAndTheSameReply) {
  Node node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> first = node.Allocate(session, 3, 77);
  EXPECT_EQ(node.Allocate(session, 3, 77), first);
  EXPECT_EQ(node.Inspect().chunk_count, 3u);
}

TEST(EngineTest, AWriterThatDiesLeavesATornChunkThatCannotBeRead) {
  Node node(ThreeTiers());
  const SessionId writer = node.Open(1000, "shared");
  const SessionId reader = node.Open(1000, "shared");
  const ChunkId chunk = node.Allocate(writer, 1)[0];
  node.Fetch(writer, {chunk}, Access::kWrite);
  node.FinishTransfers();
  node.Post(ClientGone{writer});
  EXPECT_EQ(node.CodeOf(node.Fetch(reader, {chunk})), absl::StatusCode::kDataLoss);
  EXPECT_EQ(node.CodeOf(node.Fetch(reader, {chunk}, Access::kWrite)), absl::StatusCode::kOk);
  EXPECT_EQ(node.CodeOf(node.Fetch(reader, {chunk})), absl::StatusCode::kOk);
}

TEST(EngineTest, AForeignChunkLooksLikeOneThatDoesNotExist) {
  Node node({kChunk * 8, kChunk * 8, kChunk * 64, Limits()});
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(900);
  open.chunk_size = kChunk;
  open.device_share = open.host_share = kChunk * 4;
  open.ssd_share = kChunk * 32;
  node.Post(ClientConnected{open.session, 1, 1});
  node.Post(open);
  const SessionId other = node.Open(2);
  const ChunkId chunk = node.Allocate(open.session, 1)[0];
  const std::string foreign(node.ReplyTo(node.Fetch(other, {chunk})).status.message());
  EXPECT_EQ(foreign, "there is no chunk " + std::to_string(chunk.value()));
}

TEST(EngineTest, AWriterWaitsForReadersAndAsksForTheirLeases) {
  Node node(ThreeTiers());
  const SessionId reader = node.Open(1000, "shared");
  const SessionId writer = node.Open(1000, "shared");
  const ChunkId chunk = node.Allocate(reader, 1)[0];
  node.Fetch(reader, {chunk});
  node.FinishTransfers();
  const CallId write = node.Fetch(writer, {chunk}, Access::kWrite);
  EXPECT_FALSE(node.Answered(write));
  ASSERT_EQ(node.revokes_.size(), 1u);
  EXPECT_EQ(node.revokes_[0].chunks, std::vector<ChunkId>{chunk});
  node.Release(reader, {chunk});
  EXPECT_EQ(node.CodeOf(write), absl::StatusCode::kOk);
}

TEST(EngineTest, AFetchThatFindsNoRoomEndsAtItsDeadlineAndSaysWhy) {
  Node node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 5);
  node.Fetch(session, {chunks[0], chunks[1], chunks[2], chunks[3]});
  node.FinishTransfers();
  FetchCall late;
  late.call = node.Call();
  late.session = session;
  late.chunks = {chunks[4]};
  late.deadline = std::chrono::seconds(2);
  node.Post(late);
  node.Wait(std::chrono::seconds(3));
  EXPECT_EQ(node.CodeOf(late.call), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(node.ReplyTo(late.call).status.message().find("4 of 4 slots are leased"),
            absl::string_view::npos);
}

TEST(EngineTest, AFailedWriteBackKeepsTheOnlyCopy) {
  Node node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 9);
  for (size_t i = 0; i < 8; ++i) node.Touch(session, chunks[i], Access::kWrite);
  const CallId fetch = node.Fetch(session, {chunks[8]}, Access::kWrite);
  // One write to SSD fails; another victim leaves in its place.
  while (node.transfers_.front().kind != StartTransfer::Kind::kHostToSsd) node.FinishOne();
  node.FinishOne(absl::InternalError("EIO"));
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kOk);
  EXPECT_EQ(node.Inspect().counters.transfers_failed, 1u);
}

TEST(EngineTest, AHungClientLosesItsSessionAndItsMemoryComesBack) {
  Node node(ThreeTiers());
  node.Open();
  for (int i = 0; i < 140; ++i) node.Wait(std::chrono::milliseconds(500));
  EXPECT_EQ(node.Inspect().session_count, 0u);
  for (const PoolUsage& pool : node.Inspect().pools) EXPECT_EQ(pool.free, pool.capacity);
}

TEST(EngineTest, MemoryThatCannotBeMadeRefusesTheJobAndLendsNothing) {
  Node node(ThreeTiers());
  node.fail_memory_ = true;
  node.Post(ClientConnected{SessionId(50), 1, 1});
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(50);
  open.chunk_size = kChunk;
  node.Post(open);
  EXPECT_EQ(node.CodeOf(open.call), absl::StatusCode::kResourceExhausted);
  for (const PoolUsage& pool : node.Inspect().pools) EXPECT_EQ(pool.free, pool.capacity);
}

// --- What the simulation found (tests/sim) ---

TEST(EngineTest, AJobThatEndsKeepsItsMemoryUntilItsTransfersAreDone) {
  Node node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 2);
  node.Fetch(session, {chunks[1]});  // The first one is at rest, and is forgotten first.
  node.Post(ClientGone{session});
  EXPECT_TRUE(node.dropped_.empty());
  node.FinishTransfers();
  EXPECT_EQ(node.dropped_.size(), 2u);
}

TEST(EngineTest, FreeingAChunkEndsAlsoTheFetchesThatWaitForOthers) {
  Node node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 2);
  node.Touch(session, chunks[0], Access::kRead);
  const CallId fetch = node.Fetch(session, chunks);  // The first one is there.
  FreeCall free{node.Call(), session, 77, {chunks[0]}};
  node.Post(free);
  EXPECT_EQ(node.CodeOf(free.call), absl::StatusCode::kOk);
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kNotFound);
  node.FinishTransfers();
}

TEST(EngineTest, FetchesOfOneSessionAtTwoTiersWaitForEachOther) {
  Node node(ThreeTiers());
  const SessionId first = node.Open(1000, "shared"), second = node.Open(1000, "shared");
  const ChunkId chunk = node.Allocate(first, 1)[0];
  const CallId held = node.Fetch(first, {chunk});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(held), absl::StatusCode::kOk);
  const CallId device = node.Fetch(second, {chunk}, Access::kWrite, Tier::kDevice);
  const CallId host = node.Fetch(second, {chunk}, Access::kWrite, Tier::kHost);
  node.Release(first, {chunk});
  node.FinishTransfers();
  EXPECT_NE(node.Answered(device), node.Answered(host));
  node.Release(second, {chunk});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(device), absl::StatusCode::kOk);
  EXPECT_EQ(node.CodeOf(host), absl::StatusCode::kOk);
}

TEST(EngineTest, ASessionIsNotEndedForTheTimeThatItsMemoryTook) {
  Node node(ThreeTiers());
  node.hold_memory_ = true;
  node.Post(ClientConnected{SessionId(9), 1000, 1});
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(9);
  open.chunk_size = kChunk;
  node.Post(open);
  for (int second = 0; second < 90; ++second) node.Wait(std::chrono::seconds(1));
  EXPECT_FALSE(node.Answered(open.call));
  node.FinishMemory();
  EXPECT_EQ(node.CodeOf(open.call), absl::StatusCode::kOk);
  node.Wait(std::chrono::seconds(1));
  const RenewCall renew{node.Call(), SessionId(9)};
  node.Post(renew);
  EXPECT_EQ(node.CodeOf(renew.call), absl::StatusCode::kOk);
}

TEST(EngineTest, AnAllocationWaitsForFreedChunksThatStillMove) {
  Node node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 64);
  node.Fetch(session, {chunks[0]});
  node.Post(FreeCall{node.Call(), session, 77, {chunks[0]}});
  const AllocateCall allocate{node.Call(), session, 78, 1};
  node.Post(allocate);
  EXPECT_FALSE(node.Answered(allocate.call));
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(allocate.call), absl::StatusCode::kOk);
}

TEST(EngineTest, AShareLargerThanThePoolIsRefusedWhateverTheChunkLimit) {
  EngineOptions options = ThreeTiers();
  options.limits.chunks = 4;
  Node node(options);
  node.Post(ClientConnected{SessionId(9), 1000, 1});
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(9);
  open.chunk_size = kChunk;
  open.device_share = Bytes(UINT64_MAX);
  node.Post(open);
  EXPECT_EQ(node.CodeOf(open.call), absl::StatusCode::kResourceExhausted);
}

TEST(EngineTest, AChunkThatWaitsForTheDeviceGivesUpItsHostSlotToWhatLeavesIt) {
  Node node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 8);
  for (int i = 0; i < 8; ++i) {
    node.Fetch(session, {chunks[i]}, Access::kWrite, i < 4 ? Tier::kDevice : Tier::kHost);
    node.FinishTransfers();
    node.Release(session, {chunks[i]});
  }
  // Both tiers are full of only copies, and the oldest one of the host is wanted on the device.
  const CallId fetch = node.Fetch(session, {chunks[4]});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kOk);
}

TEST(EngineTest, EvictEndsTheLeasesOfItsSessionAndNoOthers) {
  Node node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 2);
  node.Fetch(session, chunks, Access::kRead);
  node.FinishTransfers();
  EvictCall evict{node.Call(), session, Tier::kSsd, {chunks[0]}};
  node.Post(evict);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(evict.call), absl::StatusCode::kOk);
  ReleaseCall again{node.Call(), session, /*request_id=*/99, {chunks[0]}};
  node.Post(again);
  EXPECT_EQ(node.CodeOf(again.call), absl::StatusCode::kFailedPrecondition);
  ReleaseCall other{node.Call(), session, /*request_id=*/100, {chunks[1]}};
  node.Post(other);
  EXPECT_EQ(node.CodeOf(other.call), absl::StatusCode::kOk);
}

TEST(EngineTest, AVictimThatIsLeasedAgainIsReplacedAtOnce) {
  Node node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 9);
  const std::vector<ChunkId> clean = {chunks[1], chunks[2], chunks[3]};
  for (const ChunkId chunk : clean) node.Touch(session, chunk, Access::kWrite);
  node.Post(EvictCall{node.Call(), session, Tier::kSsd, clean});
  node.FinishTransfers();
  node.Touch(session, chunks[0], Access::kWrite);
  for (const ChunkId chunk : clean) node.Touch(session, chunk, Access::kRead);
  // The host: three leases and one only copy, so that who leaves the device waits for the disk.
  node.Fetch(session, {chunks[4], chunks[5], chunks[6]}, Access::kWrite, Tier::kHost);
  node.FinishTransfers();
  node.Fetch(session, {chunks[7]}, Access::kWrite, Tier::kHost);
  node.Release(session, {chunks[4]});
  node.FinishTransfers();
  node.Release(session, {chunks[7]});
  node.Fetch(session, {chunks[4]}, Access::kWrite, Tier::kHost);
  node.FinishTransfers();
  node.Fetch(session, {chunks[8]});
  EXPECT_EQ(node.transfers_.size(), 1u);  // To the disk.
  const CallId again = node.Fetch(session, {chunks[0]});
  EXPECT_EQ(node.CodeOf(again), absl::StatusCode::kOk);
  ASSERT_EQ(node.transfers_.size(), 2u);
  EXPECT_EQ(node.transfers_[1].kind, StartTransfer::Kind::kZero);
}

TEST(EngineTest, MemoryThatCannotGrowRefusesTheFetchesThatNeededIt) {
  EngineOptions options;
  options.device_capacity = options.host_capacity = GiB(4);
  Node node(options);
  node.Post(ClientConnected{SessionId(9), 1000, 1});
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(9);
  open.chunk_size = GiB(1);
  node.Post(open);
  const std::vector<ChunkId> chunks = node.Allocate(SessionId(9), 2);
  node.fail_memory_ = true;
  const CallId fetch = node.Fetch(SessionId(9), chunks);
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kResourceExhausted);
  node.FinishTransfers();
}

}  // namespace
}  // namespace memtide

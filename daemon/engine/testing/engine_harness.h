// EngineHarness: one engine for its unit tests. Transfers end when the test ends them; memory is
// made and dropped at once unless hold_memory_ is set. Checks the invariants after every event.
#ifndef MEMTIDE_DAEMON_ENGINE_TESTING_ENGINE_HARNESS_H_
#define MEMTIDE_DAEMON_ENGINE_TESTING_ENGINE_HARNESS_H_

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/content_sums.h"
#include "daemon/engine/engine.h"
#include "gtest/gtest.h"

namespace memtide {

inline constexpr Bytes kChunk = MiB(2);

class EngineHarness {
 public:
  explicit EngineHarness(EngineOptions options) : engine_(options) {}

  void Post(const Event& event) {
    std::vector<Effect> effects;
    engine_.Handle(now_, event, &effects);
    engine_.CheckInvariants();
    for (Effect& effect : effects) Take(std::move(effect));
  }
  Instant now() const { return now_; }
  void Wait(Duration time) {
    now_ += time;
    Post(Tick{});
  }
  // Ends transfers, and those that follow from them, until none is in flight.
  void FinishTransfers(absl::Status status = absl::OkStatus()) {
    while (!transfers_.empty()) FinishOne(status);
  }
  void FinishOne(absl::Status status = absl::OkStatus()) {
    const StartTransfer transfer = transfers_.front();
    transfers_.erase(transfers_.begin());
    TransferDone done{transfer.transfer, std::move(status)};
    // All contents have the same sums.
    if (transfer.make_sums) done.sums.assign(SumsOfSize(transfer.size), 1);
    Post(done);
  }

  CallId Call() { return CallId(++last_call_); }
  // The reply to a call; the test fails where there is none.
  const Reply& ReplyTo(CallId call) {
    EXPECT_EQ(replies_.count(call), 1u) << "call " << call << " is not answered";
    return replies_[call];
  }
  bool Answered(CallId call) const { return replies_.count(call) > 0; }
  absl::StatusCode CodeOf(CallId call) { return ReplyTo(call).status.code(); }

  // Opens a session, with a job of its own unless it names one.
  SessionId Open(uint32_t uid = 1000, std::string job = "") {
    OpenCall open;
    open.job_name = std::move(job);
    return OpenAs(open, uid);
  }
  SessionId OpenAs(OpenCall open, uint32_t uid = 1000) {
    const CallId call = BeginOpenAs(std::move(open), uid);
    EXPECT_TRUE(ReplyTo(call).status.ok()) << ReplyTo(call).status;
    return last_opened();
  }
  // Connects a client that opens a session, last_opened() from here on. It may have to wait.
  CallId BeginOpenAs(OpenCall open, uint32_t uid = 1000) {
    open.call = Call();
    open.session = SessionId(++last_session_);
    open.chunk_size = kChunk;
    Post(ClientConnected{open.session, uid, 1});
    Post(open);
    return open.call;
  }
  SessionId last_opened() const { return SessionId(last_session_); }
  // Shares for which no size is named are elastic. A job with a name outlives its sessions.
  static OpenCall ElasticOpen(std::string job) {
    OpenCall open;
    open.elastic = true;
    open.job_name = std::move(job);
    if (!open.job_name.empty()) open.time_to_live = std::chrono::hours(1);
    return open;
  }
  std::vector<ChunkId> Allocate(SessionId session, uint32_t count, uint64_t request_id = 0,
                                bool undefined = false) {
    AllocateCall allocate{Call(), session, request_id == 0 ? ++last_request_ : request_id, count};
    allocate.undefined = undefined;
    Post(allocate);
    const auto* reply = std::get_if<AllocateReply>(&ReplyTo(allocate.call).value);
    return reply == nullptr ? std::vector<ChunkId>() : reply->chunks;
  }
  // Chunks as the arena of activations has them; their calls may be refused.
  CallId AllocateTransient(SessionId session, uint32_t count, absl::optional<Tier> home) {
    AllocateCall allocate{Call(), session, ++last_request_, count, ChunkKind::kActivation};
    allocate.undefined = allocate.transient = true;
    allocate.home = home;
    Post(allocate);
    return allocate.call;
  }
  std::vector<ChunkId> ChunksOf(CallId allocate) {
    const auto* reply = std::get_if<AllocateReply>(&ReplyTo(allocate).value);
    return reply == nullptr ? std::vector<ChunkId>() : reply->chunks;
  }
  CallId Discard(SessionId session, std::vector<ChunkId> chunks) {
    DiscardCall discard{Call(), session, ++last_request_, std::move(chunks)};
    Post(discard);
    return discard.call;
  }
  std::vector<ChunkInfo> Describe(SessionId session, std::vector<ChunkId> chunks) {
    DescribeCall describe{Call(), session, std::move(chunks)};
    Post(describe);
    return std::get<DescribeReply>(ReplyTo(describe.call).value).chunks;
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

  // Makes and drops memory that was held back.
  void FinishMemory() {
    std::vector<Event> made;
    made.swap(held_memory_);
    for (const Event& event : made) Post(event);
  }

  std::vector<StartTransfer> transfers_;
  std::vector<AwaitTransfer> awaited_;
  std::vector<StartStep> steps_;
  std::vector<Revoke> revokes_;
  std::vector<Misprediction> mispredictions_;
  std::vector<RegionId> dropped_;
  std::vector<MakeRegion> made_;
  std::vector<SendRegion> sent_;
  std::vector<SendRegionGone> gone_;
  std::vector<ReleaseSlot> emptied_;
  std::vector<PopulateSlot> filled_;
  std::vector<SendLeaseBudget> budgets_;
  std::vector<MachineShort> shortages_;
  std::vector<CloseSession> closed_;
  std::vector<RegionsStayExposed> exposed_;
  std::vector<BadCopyFound> bad_copies_;
  std::vector<WritesWait> writes_wait_;
  std::vector<TransfersFail> transfers_fail_;
  bool fail_memory_ = false;
  bool hold_memory_ = false;       // Also what is dropped.
  std::vector<uint32_t> stripes_;  // The same for all stores.

 private:
  void Take(Effect effect) {
    const absl::Status memory =
        fail_memory_ ? absl::ResourceExhaustedError("no memory") : absl::OkStatus();
    if (auto* reply = std::get_if<Reply>(&effect)) {
      EXPECT_TRUE(replies_.emplace(reply->call, *reply).second) << "answered twice";
    } else if (auto* region = std::get_if<MakeRegion>(&effect)) {
      made_.push_back(*region);
      const RegionMade made{region->region, memory};
      hold_memory_ ? held_memory_.push_back(made) : Post(made);
    } else if (auto* store = std::get_if<MakeStore>(&effect)) {
      Post(StoreMade{store->store, memory, stripes_});
    } else if (auto* drop = std::get_if<DropRegion>(&effect)) {
      dropped_.push_back(drop->region);
      const RegionDropped dropped{drop->region};
      hold_memory_ ? held_memory_.push_back(dropped) : Post(dropped);
    } else if (auto* drop = std::get_if<DropStore>(&effect)) {
      Post(StoreDropped{drop->store});
    } else if (auto* transfer = std::get_if<StartTransfer>(&effect)) {
      transfers_.push_back(*transfer);
    } else if (auto* awaited = std::get_if<AwaitTransfer>(&effect)) {
      awaited_.push_back(*awaited);
    } else if (auto* revoke = std::get_if<Revoke>(&effect)) {
      revokes_.push_back(*revoke);
    } else if (auto* misprediction = std::get_if<Misprediction>(&effect)) {
      mispredictions_.push_back(*misprediction);
    } else if (auto* send = std::get_if<SendRegion>(&effect)) {
      sent_.push_back(*send);
    } else if (auto* gone = std::get_if<SendRegionGone>(&effect)) {
      gone_.push_back(*gone);
    } else if (auto* step = std::get_if<StartStep>(&effect)) {
      steps_.push_back(*step);
    } else if (auto* empty = std::get_if<ReleaseSlot>(&effect)) {
      emptied_.push_back(*empty);
      const SlotReleased emptied{empty->place};
      hold_memory_ ? held_memory_.push_back(emptied) : Post(emptied);
    } else if (auto* fill = std::get_if<PopulateSlot>(&effect)) {
      filled_.push_back(*fill);
      const SlotPopulated filled{fill->place, memory};
      hold_memory_ ? held_memory_.push_back(filled) : Post(filled);
    } else if (auto* budget = std::get_if<SendLeaseBudget>(&effect)) {
      budgets_.push_back(*budget);
    } else if (auto* shortage = std::get_if<MachineShort>(&effect)) {
      shortages_.push_back(*shortage);
    } else if (auto* close = std::get_if<CloseSession>(&effect)) {
      closed_.push_back(*close);
    } else if (auto* exposed = std::get_if<RegionsStayExposed>(&effect)) {
      exposed_.push_back(*exposed);
    } else if (auto* bad = std::get_if<BadCopyFound>(&effect)) {
      bad_copies_.push_back(*bad);
    } else if (auto* fail = std::get_if<TransfersFail>(&effect)) {
      transfers_fail_.push_back(std::move(*fail));
    } else if (auto* wait = std::get_if<WritesWait>(&effect)) {
      writes_wait_.push_back(*wait);
    }
  }

  Engine engine_;
  std::vector<Event> held_memory_;
  Instant now_{std::chrono::seconds(1)};
  std::map<CallId, Reply> replies_;
  uint64_t last_call_ = 0, last_session_ = 0, last_request_ = 0;
};

inline EngineOptions ThreeTiers() { return {{kChunk * 4}, kChunk * 4, kChunk * 64, Limits()}; }

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TESTING_ENGINE_HARNESS_H_

// EngineByteHarness: one engine for tests of bytes. Regions and stores are vectors; transfers and
// steps move bytes when the test lets them, and each may be made to fail. Checks the invariants
// after every event.
#ifndef MEMTIDE_DAEMON_ENGINE_TESTING_ENGINE_BYTE_HARNESS_H_
#define MEMTIDE_DAEMON_ENGINE_TESTING_ENGINE_BYTE_HARNESS_H_

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/content_sums.h"
#include "base/content_work.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/interface/copy_work.h"
#include "daemon/engine/testing/stable_storage.h"
#include "gtest/gtest.h"

namespace memtide {

class EngineByteHarness {
  // Zeroed memory, which has no pages until it is touched.
  struct Freer {
    void operator()(char* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<char, Freer>;
  static Memory Zeros(Bytes size) {
    return Memory(static_cast<char*>(std::calloc(size.count(), 1)));
  }

 public:
  static constexpr Bytes kChunk = MiB(2);

  explicit EngineByteHarness(const EngineOptions& options)
      : options_(options), engine_(std::make_unique<Engine>(options)) {}

  void Post(const Event& event) {
    std::vector<Effect> effects;
    engine_->Handle(now_, event, &effects);
    engine_->CheckInvariants();
    for (size_t i = 1; i < effects.size() && !std::holds_alternative<Restore>(event); ++i) {
      EXPECT_FALSE(std::holds_alternative<Record>(effects[i])) << "a record comes before all else";
    }
    for (Effect& effect : effects) Take(std::move(effect));
  }

  // --- What is in flight, oldest first ---

  size_t in_flight() const { return in_flight_.size(); }
  // Slots that were released to the machine so far.
  int emptied() const { return emptied_; }
  // Ends the oldest; a failure writes nothing or rubbish.
  void FinishOne(absl::Status status = absl::OkStatus()) {
    const Effect effect = std::move(in_flight_.front());
    in_flight_.pop_front();
    if (const auto* step = std::get_if<StartStep>(&effect)) {
      std::vector<char*> chunks;
      for (const MemoryPlace& place : step->chunks) chunks.push_back(At(place));
      StepDone done{step->step, status};
      if (status.ok() && step->work != nullptr) {
        RunAll(*step->work, chunks);
      } else if (status.ok()) {
        done.contents = Run(*step->contents, chunks, step->size, secret_);
        if (plant_collisions_) done.contents.digests.assign(done.contents.digests.size(), {1, 1});
      }
      Post(done);
    } else if (const auto* save = std::get_if<SaveSnapshot>(&effect)) {
      status.Update(flush_);
      if (!flush_.ok()) stable_.EndWrites({StableStorage::Fate::kNothing});
      if (status.ok() || saves_although_it_fails_) stable_.Save(*save->snapshot);
      Post(SnapshotSaved{save->snapshot->job.job, std::move(status)});
    } else if (const auto* empty = std::get_if<ReleaseSlot>(&effect)) {
      Post(SlotReleased{empty->place});
    } else if (const auto* fill = std::get_if<PopulateSlot>(&effect)) {
      if (status.ok()) std::memset(At(fill->place), 0, kChunk.count());
      Post(SlotPopulated{fill->place, std::move(status)});
    } else {
      const auto& transfer = std::get<StartTransfer>(effect);
      CarryOut(transfer, status.ok());
      Post(Done(transfer, std::move(status)));
    }
  }
  // Ends what began last.
  void FinishNewest() {
    in_flight_.push_front(std::move(in_flight_.back()));
    in_flight_.pop_back();
    FinishOne();
  }
  // Lets time pass in which nothing that is in flight ends.
  void Wait(Duration time) {
    now_ += time;
    Post(Tick{});
  }

  // The place on SSD of the last transfer to there, to be changed behind the engine's back.
  char* LastWritten() { return At(last_written_); }
  // The place on SSD of a chunk of a job that outlives the daemon.
  char* StoredBytes(ChunkId chunk) {
    const ChunkRecord& record = chunks_.at(static_cast<uint32_t>(chunk.value()));
    const JobRecord& job = jobs_.at(record.job);
    const uint32_t slot = record.ssd->slot;
    return At(StorePlace{job.stores.at(slot / job.slots_per_store),
                         kChunk * (slot % job.slots_per_store)});
  }
  const std::vector<BadCopyFound>& bad_copies() const { return bad_copies_; }
  // The records that the next daemon restores, by the low 32 bits of the chunk's id.
  std::map<uint32_t, ChunkRecord>& chunk_records() { return chunks_; }

  // Lets time pass and transfers end until the call is answered.
  void FinishUntilAnswered(CallId call) {
    for (int i = 0; i < 10000 && !Answered(call); ++i) Advance();
    EXPECT_TRUE(Answered(call)) << "call " << call << " is never answered";
  }
  // Moves bytes until the call is answered, and returns the answer of a call that must succeed.
  template <typename Value>
  Value Finish(CallId call) {
    FinishUntilAnswered(call);
    const Reply& reply = ReplyTo(call);
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    const auto* value = std::get_if<Value>(&reply.value);
    return value == nullptr ? Value() : *value;
  }
  // If the node has a reserve, programs at times take all memory of the machine.
  void Advance() {
    if (!options_.host_reserve.IsZero()) {
      Post(HostMemory{++advances_ % 3 == 0 ? options_.host_reserve * 4 : Bytes(0)});
    }
    if (in_flight_.empty()) {
      now_ += std::chrono::milliseconds(100);
      Post(Tick{});
    } else {
      FinishOne();
    }
  }

  // The daemon dies, and another one restores what is recorded. Each transfer in flight is
  // complete, or half done, or not begun, by the digits of `torn` in base 3; a step leaves rubbish.
  // Device memory is lost. Returns the jobs that are not restored.
  std::vector<JobLost> DaemonDies(uint32_t torn) { return DaemonDies(torn, options_); }
  // As above, but the next daemon has other options.
  std::vector<JobLost> DaemonDies(uint32_t torn, const EngineOptions& next) {
    for (const Effect& effect : std::exchange(in_flight_, {})) {
      if (const auto* step = std::get_if<StartStep>(&effect)) {
        for (const CopyWork::Copy& copy : step->work->copies) Spoil(*step, copy);
      } else if (!std::holds_alternative<StartTransfer>(effect)) {
        continue;
      } else if (torn % 3 != 0) {
        CarryOut(std::get<StartTransfer>(effect), torn % 3 == 1);
      }
      torn /= 3;
    }
    for (const RegionId region : device_regions_) regions_.erase(region);
    device_regions_.clear();
    const auto drop_others = [this](auto* parts) {
      for (auto it = parts->begin(); it != parts->end();) {
        it = persistent_.count(it->first.value()) > 0 ? std::next(it) : parts->erase(it);
      }
    };
    drop_others(&regions_);
    drop_others(&stores_);
    lost_.clear();
    engine_ = std::make_unique<Engine>(next);
    Restore restore;
    for (const auto& [id, job] : jobs_) restore.job_records.push_back(job);
    for (const auto& [place, chunk] : chunks_) restore.chunk_records.push_back(chunk);
    for (const auto& [id, saved] : stable_.saved()) restore.snapshots.push_back(saved);
    Post(restore);
    return lost_;
  }

  // The machine loses its power, and another daemon restores what is on stable storage: the
  // snapshots, and what was there of their stores. The digits of `torn` in base 3, over and over,
  // are the fates of each write that was not flushed, or was in flight; the last digit says what is
  // there of a snapshot that was being saved.
  std::vector<JobLost> PowerCut(uint32_t torn) { return PowerCut(torn, options_); }
  std::vector<JobLost> PowerCut(uint32_t torn, const EngineOptions& next) {
    const auto part = static_cast<StableStorage::SavedPart>(torn % 3);
    std::vector<StableStorage::Fate> fates;
    for (; torn > 0 || fates.empty(); torn /= 3) {
      fates.push_back(static_cast<StableStorage::Fate>(torn % 3));
    }
    for (const Effect& effect : std::exchange(in_flight_, {})) {
      if (const auto* save = std::get_if<SaveSnapshot>(&effect))
        stable_.SavePart(*save->snapshot, part);
      const auto* const transfer = std::get_if<StartTransfer>(&effect);
      if (transfer == nullptr || transfer->kind != StartTransfer::Kind::kHostToSsd) continue;
      stable_.Write(transfer->store, std::string(At(transfer->from), kChunk.count()));
    }
    stable_.EndWrites(fates);
    regions_.clear();
    device_regions_.clear();
    jobs_.clear();
    chunks_.clear();
    stores_.clear();
    Restore restore;
    for (const auto& [id, saved] : stable_.saved()) {
      restore.snapshots.push_back(saved);
      for (size_t i = 0; i < saved.job.stores.size(); ++i) {
        stores_[saved.job.stores[i]] = Zeros(SizeOfSegment(saved.job, Tier::kSsd, i));
      }
    }
    for (const auto& [place, bytes] : stable_.contents()) {
      if (stores_.count(place.first) == 0) continue;
      std::memcpy(At(StorePlace{place.first, Bytes(place.second)}), bytes.data(), bytes.size());
    }
    lost_.clear();
    engine_ = std::make_unique<Engine>(next);
    Post(restore);
    return lost_;
  }
  const std::map<JobId, Snapshot>& saved() const { return stable_.saved(); }
  // Whether the oldest of what is in flight is a snapshot that is being saved.
  bool SavesNow() const {
    return !in_flight_.empty() && std::holds_alternative<SaveSnapshot>(in_flight_.front());
  }
  // The same of a write to SSD, and of a read.
  bool WritesNow() const { return MovesNow(StartTransfer::Kind::kHostToSsd); }
  bool ReadsNow() const { return MovesNow(StartTransfer::Kind::kSsdToHost); }
  Instant now() const { return now_; }

  // --- Calls ---

  CallId Call() { return CallId(++last_call_); }
  bool Answered(CallId call) const { return replies_.count(call) > 0; }
  const Reply& ReplyTo(CallId call) {
    EXPECT_EQ(replies_.count(call), 1u) << "call " << call << " is not answered";
    return replies_[call];
  }
  SessionId Open(const std::string& job, Duration time_to_live, OpenReply* opened = nullptr) {
    return OpenRank(job, time_to_live, 0, 0, opened);
  }
  // Opens a job each of whose steps that are a multiple of `every` is to be durable.
  SessionId OpenDurable(const std::string& job, uint32_t every, OpenReply* opened = nullptr) {
    durable_every_ = every;
    const SessionId session = Open(job, std::chrono::hours(1), opened);
    durable_every_ = 0;
    return session;
  }
  SessionId OpenRank(const std::string& job, Duration time_to_live, uint32_t rank, uint32_t ranks,
                     OpenReply* opened = nullptr, uint32_t uid = 1000) {
    OpenCall open;
    open.rank = rank;
    open.ranks = ranks;
    open.call = Call();
    open.session = SessionId(++last_session_);
    open.chunk_size = kChunk;
    open.job_name = job;
    open.time_to_live = time_to_live;
    open.elastic = elastic_;
    open.device_share = device_share_;
    if (!device_share_.IsZero()) open.device_memory = MemoryKind::kSharedMemory;
    open.durable_every = durable_every_;
    open.group = group_;
    open.group_rank = group_rank_;
    open.group_ranks = group_ranks_;
    Post(ClientConnected{open.session, uid, 1});
    Post(open);
    FinishUntilAnswered(open.call);
    const Reply& reply = ReplyTo(open.call);
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    if (opened != nullptr) *opened = std::get<OpenReply>(reply.value);
    return open.session;
  }
  std::vector<ChunkId> Allocate(SessionId session, uint32_t count) {
    const AllocateCall allocate{Call(), session, ++last_request_, count};
    Post(allocate);
    FinishUntilAnswered(allocate.call);
    const auto* reply = std::get_if<AllocateReply>(&ReplyTo(allocate.call).value);
    return reply == nullptr ? std::vector<ChunkId>() : reply->chunks;
  }
  void Fill(SessionId session, ChunkId chunk, const std::vector<float>& values) {
    std::memcpy(Lease(session, chunk, Access::kWrite), values.data(),
                values.size() * sizeof(float));
    Release(session, chunk);
  }
  std::vector<float> Read(SessionId session, ChunkId chunk, size_t count) {
    std::vector<float> values(count);
    std::memcpy(values.data(), Lease(session, chunk, Access::kRead), count * sizeof(float));
    Release(session, chunk);
    return values;
  }

  // The chunk is on its way to the device afterwards, for a fetch that has run out of time.
  void StartMoving(SessionId session, ChunkId chunk) {
    FetchCall fetch;
    fetch.call = Call();
    fetch.session = session;
    fetch.chunks = {chunk};
    fetch.deadline = std::chrono::milliseconds(1);
    Post(fetch);
    Wait(std::chrono::milliseconds(2));
    EXPECT_TRUE(absl::IsDeadlineExceeded(ReplyTo(fetch.call).status));
  }
  Reply Fetch(SessionId session, ChunkId chunk, Tier tier, Access access) {
    FetchCall fetch;
    fetch.call = Call();
    fetch.session = session;
    fetch.tier = tier;
    fetch.access = access;
    fetch.chunks = {chunk};
    Post(fetch);
    FinishUntilAnswered(fetch.call);
    return ReplyTo(fetch.call);
  }
  void Release(SessionId session, ChunkId chunk) {
    Post(ReleaseCall{Call(), session, ++last_request_, {chunk}});
  }
  ChunkInfo Describe(SessionId session, ChunkId chunk) {
    const DescribeCall describe{Call(), session, {chunk}};
    Post(describe);
    return std::get<DescribeReply>(ReplyTo(describe.call).value).chunks[0];
  }

  void Free(SessionId session, ChunkId chunk) {
    Post(FreeCall{Call(), session, ++last_request_, {chunk}});
  }
  // The number of regions and stores.
  size_t memory_segments() const { return regions_.size() + stores_.size(); }

  // Whether one of chunks[first] to chunks[end - 1] has a transfer in flight.
  bool IsMoving(SessionId session, const std::vector<ChunkId>& chunks, size_t first, size_t end) {
    const DescribeCall describe{Call(), session, {chunks.begin() + first, chunks.begin() + end}};
    Post(describe);
    const auto infos = std::get<DescribeReply>(ReplyTo(describe.call).value).chunks;
    return std::any_of(infos.begin(), infos.end(), [](const auto& info) { return info.moving; });
  }

  // The bytes of a region from there on.
  char* At(const MemoryPlace& place) {
    return regions_.at(place.region).get() + place.offset.count();
  }

  std::vector<Revoke> revokes_;
  std::set<RegionId> read_only_regions_;
  std::set<std::pair<SessionId, RegionId>> sent_;
  bool elastic_ = false;        // For the jobs that Open() and OpenRank() open.
  uint32_t durable_every_ = 0;  // As elastic_.
  Bytes device_share_;          // As elastic_.
  std::string group_;           // As elastic_.
  uint32_t group_rank_ = 0, group_ranks_ = 0;
  bool plant_collisions_ = false;  // All contents have one digest.
  bool saves_although_it_fails_ = false;
  bool keeps_unflushed_ = false;  // For PowerCut().
  absl::Status flush_;            // With an error, a save fails, and what was not flushed is lost.

 private:
  bool MovesNow(StartTransfer::Kind kind) const {
    const auto* const transfer =
        in_flight_.empty() ? nullptr : std::get_if<StartTransfer>(&in_flight_.front());
    return transfer != nullptr && transfer->kind == kind;
  }
  char* Lease(SessionId session, ChunkId chunk, Access access) {
    const Reply reply = Fetch(session, chunk, Tier::kHost, access);
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    return At(std::get<FetchReply>(reply.value).leases[0].place);
  }
  void CarryOut(const StartTransfer& transfer, bool works) {
    using Kind = StartTransfer::Kind;
    if (transfer.kind == Kind::kVerifySsd) return;
    char* const from = transfer.kind == Kind::kSsdToHost ? At(transfer.store)
                       : transfer.kind == Kind::kZero    ? nullptr
                                                         : At(transfer.from);
    char* const to = transfer.kind == Kind::kHostToSsd ? At(transfer.store) : At(transfer.to);
    if (!works || from == nullptr) {
      std::memset(to, works ? 0 : 0xEE, transfer.size.count());
    } else {
      std::memcpy(to, from, transfer.size.count());
    }
    if (transfer.kind == Kind::kHostToSsd && keeps_unflushed_) {
      stable_.Write(transfer.store, std::string(to, transfer.size.count()));
    }
  }
  void Spoil(const StartStep& step, const CopyWork::Copy& copy) {
    std::memset(At(step.chunks[copy.to.chunk]), 0xEE, kChunk.count());
  }
  // As the mover does.
  TransferDone Done(const StartTransfer& transfer, absl::Status status) {
    using Kind = StartTransfer::Kind;
    TransferDone done{transfer.transfer, std::move(status)};
    if (!done.status.ok()) return done;
    if (transfer.kind == Kind::kHostToSsd) last_written_ = transfer.store;
    if (transfer.make_sums) done.sums = SumsOf({At(transfer.from), transfer.size.count()});
    if (transfer.sums.empty()) return done;
    const char* const bytes =
        transfer.kind == Kind::kVerifySsd ? At(transfer.store) : At(transfer.to);
    done.wrong_bytes = FirstWrongPiece({bytes, transfer.size.count()}, transfer.sums).has_value();
    if (done.wrong_bytes) done.status = absl::DataLossError("wrong bytes at a place");
    return done;
  }
  char* At(const StorePlace& place) { return stores_.at(place.store).get() + place.offset.count(); }

  void Take(Effect effect) {
    if (auto* reply = std::get_if<Reply>(&effect)) {
      EXPECT_TRUE(replies_.emplace(reply->call, *reply).second) << "answered twice";
    } else if (auto* region = std::get_if<MakeRegion>(&effect)) {
      regions_[region->region] = Zeros(region->size);
      if (region->copy_of.has_value()) {
        std::memcpy(regions_[region->region].get(), regions_.at(*region->copy_of).get(),
                    region->size.count());
      }
      if (region->pool.tier == Tier::kDevice) device_regions_.push_back(region->region);
      if (region->persistent) persistent_.insert(region->region.value());
      if (region->read_only) read_only_regions_.insert(region->region);
      Post(RegionMade{region->region, absl::OkStatus()});
    } else if (auto* store = std::get_if<MakeStore>(&effect)) {
      stores_[store->store] = Zeros(store->size);
      if (store->persistent) persistent_.insert(store->store.value());
      Post(StoreMade{store->store, absl::OkStatus()});
    } else if (auto* drop = std::get_if<DropRegion>(&effect)) {
      EXPECT_EQ(regions_.erase(drop->region), 1u) << drop->region << " is dropped twice";
      read_only_regions_.erase(drop->region);
      Post(RegionDropped{drop->region});
    } else if (auto* drop = std::get_if<DropStore>(&effect)) {
      EXPECT_EQ(stores_.erase(drop->store), 1u) << drop->store << " is dropped twice";
      stable_.Drop(drop->store);
      Post(StoreDropped{drop->store});
    } else if (auto* send = std::get_if<SendRegion>(&effect)) {
      sent_.insert({send->session, send->region});
    } else if (auto* revoke = std::get_if<Revoke>(&effect)) {
      revokes_.push_back(*revoke);
    } else if (auto* lost = std::get_if<JobLost>(&effect)) {
      lost_.push_back(*lost);
    } else if (auto* bad = std::get_if<BadCopyFound>(&effect)) {
      bad_copies_.push_back(*bad);
    } else if (auto* drop = std::get_if<DropSnapshot>(&effect)) {
      stable_.Remove(drop->job);
    } else if (auto* record = std::get_if<Record>(&effect)) {
      Keep(*record);
    } else if (auto* empty = std::get_if<ReleaseSlot>(&effect)) {
      ++emptied_;
      std::memset(At(empty->place), 0xEE, kChunk.count());
      in_flight_.push_back(std::move(effect));
    } else if (std::holds_alternative<StartTransfer>(effect) ||
               std::holds_alternative<PopulateSlot>(effect) ||
               std::holds_alternative<SaveSnapshot>(effect) ||
               std::holds_alternative<StartStep>(effect)) {
      in_flight_.push_back(std::move(effect));
    }
  }

  void Keep(const Record& record) {
    for (const JobId id : record.ended) jobs_.erase(id);
    for (const JobRecord& job : record.jobs) jobs_[job.job] = job;
    for (const uint32_t place : record.freed) chunks_.erase(place);
    for (const ChunkRecord& chunk : record.chunks) {
      chunks_[static_cast<uint32_t>(chunk.chunk.value())] = chunk;
    }
  }

  const EngineOptions options_;
  const HashSecret secret_ = *HashSecret::FromBytes(std::string(HashSecret::kMinBytes, 's'));
  std::unique_ptr<Engine> engine_;
  std::map<JobId, JobRecord> jobs_;
  std::map<uint32_t, ChunkRecord> chunks_;
  std::vector<JobLost> lost_;
  std::vector<BadCopyFound> bad_copies_;
  StorePlace last_written_;
  std::vector<RegionId> device_regions_;
  std::set<uint32_t> persistent_;
  Instant now_{std::chrono::seconds(1)};
  std::map<RegionId, Memory> regions_;
  std::map<StoreId, Memory> stores_;
  // Transfers, steps, snapshots, and releases and populations of slots.
  std::deque<Effect> in_flight_;
  StableStorage stable_;
  int advances_ = 0, emptied_ = 0;
  std::map<CallId, Reply> replies_;
  uint64_t last_call_ = 0, last_session_ = 0, last_request_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TESTING_ENGINE_BYTE_HARNESS_H_

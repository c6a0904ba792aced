// Measures the engine alone: events a second on one core, and the bytes of its tables for a chunk.
//
//   engine_bench [--quick]
//   engine_bench --uses=N [--moving]   only that, for tools/fetch_cost, which counts instructions
//
// Node replaces the edges with the least code: it makes regions and stores and finishes transfers
// at once.
#include <malloc.h>
#include <unistd.h>

#include <cstdint>
#include <deque>
#include <iostream>
#include <utility>
#include <variant>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "base/check.h"
#include "bench/harness.h"
#include "daemon/engine/engine.h"

ABSL_FLAG(bool, quick, false, "fewer and shorter rounds");
ABSL_FLAG(int, uses, -1, "measures nothing, and uses that many chunks");
ABSL_FLAG(bool, moving, false, "each of these uses writes a victim back and reads a chunk");

namespace memtide {
namespace {

constexpr Bytes kChunk = MiB(64);

class Node {
 public:
  // Opens one session, whose job may use all slots.
  Node(uint32_t device_slots, uint32_t host_slots, uint32_t ssd_slots)
      : engine_({{kChunk * device_slots}, kChunk * host_slots, kChunk * ssd_slots, Limits()}) {
    Post(ClientConnected{kSession, 1000, 1});
    OpenCall open;
    open.call = NextCall();
    open.session = kSession;
    open.chunk_size = kChunk;
    Post(open);
  }

  std::vector<ChunkId> Allocate(uint32_t count) {
    const uint32_t batch = Limits().chunks_per_call;
    std::vector<ChunkId> chunks;
    while (count > 0) {
      const uint32_t now = std::min(count, batch);
      Post(AllocateCall{NextCall(), kSession, ++last_request_, now});
      const auto& made = std::get<AllocateReply>(reply_.value).chunks;
      chunks.insert(chunks.end(), made.begin(), made.end());
      count -= now;
    }
    return chunks;
  }

  // From now on every use is reported as one moment of an iteration.
  void ReportMoments() { reports_moments_ = true; }
  // Each transfer ends `transfer_time` (virtual) after the event before it.
  void SlowDown(Duration transfer_time) { transfer_time_ = transfer_time; }
  // Leases the chunk and releases it.
  void Use(ChunkId chunk, Access access) {
    FetchCall fetch;
    fetch.call = NextCall();
    fetch.session = kSession;
    fetch.access = access;
    fetch.chunks = {chunk};
    if (reports_moments_) fetch.moments = Moments(chunk, access);
    Post(fetch);
    MEMTIDE_CHECK(reply_.status.ok()) << reply_.status;
    Post(ReleaseCall{NextCall(), kSession, ++last_request_, {chunk}});
  }

  // Uses the chunk after the one that was used last. An iteration uses each chunk once.
  void UseNext(const std::vector<ChunkId>& chunks, Access access) {
    Use(chunks[next_], access);
    next_ = (next_ + 1) % chunks.size();
    ended_ = next_ == 0;
  }

  uint64_t events() const { return events_; }
  uint64_t transfers() const { return transfers_; }

 private:
  static constexpr Duration kEventTime = std::chrono::microseconds(1);
  static constexpr SessionId kSession = SessionId(1);

  CallId NextCall() { return CallId(++last_call_); }

  std::vector<MomentReport> Moments(ChunkId chunk, Access access) {
    std::vector<MomentReport> moments;
    if (std::exchange(ended_, false)) {
      moments.emplace_back();
      moments.back().continues = moments.back().ends_iteration = true;
    }
    moments.emplace_back();
    moments.back().name = "Linear";
    moments.back().uses.push_back({chunk, access});
    return moments;
  }

  // Handles the event, and all events that its effects cause.
  void Post(const Event& event) {
    Handle(event);
    while (!following_.empty()) {
      const Event next = std::move(following_.front());
      following_.pop_front();
      Handle(next);
    }
  }

  void Handle(const Event& event) {
    ++events_;
    now_ += std::holds_alternative<TransferDone>(event) ? transfer_time_ : kEventTime;
    effects_.clear();
    engine_.Handle(now_, event, &effects_);
    for (Effect& effect : effects_) {
      if (auto* reply = std::get_if<Reply>(&effect)) {
        reply_ = std::move(*reply);
      } else if (auto* transfer = std::get_if<StartTransfer>(&effect)) {
        ++transfers_;
        following_.push_back(TransferDone{transfer->transfer, absl::OkStatus()});
      } else if (auto* region = std::get_if<MakeRegion>(&effect)) {
        following_.push_back(RegionMade{region->region, absl::OkStatus()});
      } else if (auto* store = std::get_if<MakeStore>(&effect)) {
        following_.push_back(StoreMade{store->store, absl::OkStatus()});
      }
    }
  }

  Engine engine_;
  Instant now_{std::chrono::seconds(1)};
  std::vector<Effect> effects_;
  std::deque<Event> following_;
  Reply reply_;
  uint64_t last_call_ = 0, last_request_ = 0, events_ = 0, transfers_ = 0;
  Duration transfer_time_ = kEventTime;
  size_t next_ = 0;
  bool reports_moments_ = false;
  bool ended_ = false;  // The last use ended an iteration, which the next use reports.
};

// Leases and releases all chunks in turn for at least `at_least`, and returns events per second of
// CPU time, in which other processes on the core do not count.
double EventsPerSecond(Node* node, const std::vector<ChunkId>& chunks, Access access,
                       Duration at_least) {
  const uint64_t events_before = node->events();
  const Duration begin = CpuTime(getpid());
  do {
    // CpuTime makes a system call, which is not the engine's time, so 256 uses share one.
    for (int i = 0; i < 256; ++i) node->UseNext(chunks, access);
  } while (CpuTime(getpid()) - begin < at_least);
  return (node->events() - events_before) / Seconds(CpuTime(getpid()) - begin);
}

void MeasureEvents() {
  const bool quick = absl::GetFlag(FLAGS_quick);
  const Duration time = std::chrono::milliseconds(quick ? 100 : 300);
  Node resident(/*device_slots=*/2048, /*host_slots=*/2048, /*ssd_slots=*/16384);
  const std::vector<ChunkId> at_rest = resident.Allocate(1024);
  for (const ChunkId chunk : at_rest) resident.Use(chunk, Access::kWrite);
  // Ten times as many chunks as slots: each use writes a victim back and reads a chunk from SSD.
  Node tidal(/*device_slots=*/1024, /*host_slots=*/1024, /*ssd_slots=*/16384);
  const std::vector<ChunkId> moving = tidal.Allocate(10240);
  for (const ChunkId chunk : moving) tidal.Use(chunk, Access::kWrite);

  RoundsOptions options;
  options.at_most = std::chrono::seconds(quick ? 4 : 15);
  Rounds rounds(options);
  while (rounds.Next()) {
    const uint64_t moved = resident.transfers();
    rounds.Add("engine.resident", EventsPerSecond(&resident, at_rest, Access::kRead, time));
    MEMTIDE_CHECK(resident.transfers() == moved);
    rounds.Add("engine.moving", EventsPerSecond(&tidal, moving, Access::kWrite, time));
  }
  rounds.Print();
}

// Measures the CPU time of an event while 100,000 chunks, a quarter of which fit, are used in turn.
void MeasureDecisions() {
  const bool quick = absl::GetFlag(FLAGS_quick);
  constexpr uint32_t kChunks = 100000;
  Node node(/*device_slots=*/kChunks / 8, /*host_slots=*/kChunks / 8, /*ssd_slots=*/kChunks);
  const std::vector<ChunkId> chunks = node.Allocate(kChunks);
  node.ReportMoments();
  // 64 MiB in 16 ms are a disk of 4 GB/s, which is slow enough to need prefetches.
  node.SlowDown(std::chrono::milliseconds(16));
  // After two equal iterations the access predictor predicts the next ones.
  for (uint32_t i = 0; i < 2 * kChunks; ++i) node.UseNext(chunks, Access::kWrite);
  RoundsOptions options;
  options.at_most = std::chrono::seconds(quick ? 4 : 15);
  Rounds rounds(options);
  const Duration time = std::chrono::milliseconds(quick ? 100 : 300);
  while (rounds.Next()) {
    rounds.Add("engine.decision", 1e6 / EventsPerSecond(&node, chunks, Access::kWrite, time));
  }
  rounds.Print();
}

// Uses that many chunks after all have been used once; prints nothing.
void UseChunks(int uses, bool moving) {
  constexpr uint32_t kChunks = 64;
  const uint32_t slots = moving ? kChunks / 4 : kChunks;
  Node node(slots, slots, /*ssd_slots=*/2 * kChunks);
  const std::vector<ChunkId> chunks = node.Allocate(kChunks);
  for (const ChunkId chunk : chunks) node.Use(chunk, Access::kWrite);
  for (int i = 0; i < uses; ++i) node.UseNext(chunks, moving ? Access::kWrite : Access::kRead);
}

size_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  // malloc takes large blocks from mmap, and counts them in hblkhd alone.
  return info.uordblks + info.hblkhd;
}

// Measures chunks that were only allocated, and chunks that have been on every tier, and reports
// the larger size.
void MeasureTables() {
  constexpr uint32_t kChunks = 100000;
  RoundsOptions options;
  options.quiet_rounds = options.most_rounds = 1;
  Rounds rounds(options);
  while (rounds.Next()) {
    const size_t before = AllocatedBytes();
    Node node(/*device_slots=*/1024, /*host_slots=*/1024, /*ssd_slots=*/kChunks);
    const std::vector<ChunkId> chunks = node.Allocate(kChunks);
    const size_t list = chunks.capacity() * sizeof(ChunkId);
    const size_t made = AllocatedBytes() - before - list;
    for (const ChunkId chunk : chunks) node.Use(chunk, Access::kWrite);
    const size_t used = AllocatedBytes() - before - list;
    rounds.Add("engine.table_bytes", static_cast<double>(std::max(made, used)) / kChunks);
  }
  rounds.Print();
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  if (const int uses = absl::GetFlag(FLAGS_uses); uses >= 0) {
    memtide::UseChunks(uses, absl::GetFlag(FLAGS_moving));
    return 0;
  }
  memtide::PinThisThread(0);
  memtide::MeasureTables();
  memtide::MeasureEvents();
  memtide::MeasureDecisions();
}

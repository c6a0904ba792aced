#include "daemon/replay/replay.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"
#include "daemon/policy/placement_policy.h"
#include "daemon/replay/simulated_node.h"
#include "daemon/replay/step_parts.h"

namespace memtide {

namespace {

using Kind = ChunkEvent::Kind;

// This many moments without a use are reported in a call of their own, as by the client library.
constexpr size_t kReportAfter = 16;

const PlacementPolicy& PlacementOf(Policy policy) {
  switch (policy) {
    case Policy::kLru:
      return LruPolicy();
    case Policy::kFifo:
      return FifoPolicy();
    case Policy::kPatrickStar:
    case Policy::kBelady:
      return BeladyPolicy();
    case Policy::kMemtide:
      break;
  }
  return PredictivePolicy();
}

// Slots that all chunks fit into, also while freed ones are still being copied.
uint32_t HomeSlots(const AccessSequence& sequence, const ReplayOptions& options) {
  return std::max(4u, MostChunks(sequence) + options.device_slots + options.host_slots);
}

EngineOptions NodeFor(const AccessSequence& sequence, const ReplayOptions& options) {
  EngineOptions node;
  if (options.device_slots > 0) {
    node.device_capacities = {sequence.chunk_size * options.device_slots};
  }
  node.host_capacity = sequence.chunk_size * options.host_slots;
  if (NeedsDisk(sequence, options)) {
    node.ssd_capacity = sequence.chunk_size * HomeSlots(sequence, options);
  }
  node.placement = &PlacementOf(options.policy);
  // Long compute times must not expire the session.
  node.limits.session_lease = node.limits.max_wait = std::chrono::hours(24 * 365);
  return node;
}

class Player {
 public:
  Player(const AccessSequence& sequence, const ReplayOptions& options)
      : sequence_(sequence),
        options_(options),
        node_(NodeFor(sequence, options), options.links),
        parts_(&node_, {options.device_slots, options.host_slots,
                        [this] { return std::exchange(reports_, {}); }}),
        ids_(sequence.chunks.size()),
        shadows_(sequence.chunks.size()) {}

  absl::StatusOr<ReplayResult> Play();

 private:
  Duration Scaled(Duration compute) const {
    return Duration(
        static_cast<int64_t>(static_cast<double>(compute.count()) * options_.compute_scale));
  }
  absl::Status PlayIteration(size_t iteration);
  absl::Status PlayMoment(const PlayedMoment& moment);
  absl::Status Use(const ChunkEvent& event, bool on_host);
  absl::Status AddPart(const PlayedMoment& part);
  absl::Status EndStep();
  // Ends the leases on the chunks.
  absl::Status Release(const std::set<uint32_t>& chunks);
  absl::Status Allocate(uint32_t chunk);
  absl::Status MakeShadow(uint32_t chunk);
  absl::StatusOr<ChunkId> AllocateOne(ChunkKind kind, bool undefined);
  absl::Status Free(uint32_t chunk);
  absl::Status Discard(uint32_t chunk);

  const AccessSequence& sequence_;
  const ReplayOptions& options_;
  SimulatedNode node_;
  StepParts parts_;
  std::vector<ChunkId> ids_, shadows_;  // By chunk number; zero: there is none.
  std::set<uint32_t> stepped_;          // Chunks whose new content is in their shadow chunks.
  uint64_t last_step_ = 0;
  // The report that the current moment's uses go to.
  MomentReport& CurrentReport();

  std::vector<MomentReport> reports_;  // Not yet reported to the engine.
  // Chunks that are leased: the last one used, and the one before.
  absl::optional<uint32_t> last_, before_last_;
  bool on_host_ = false;  // Where the last use was.
  Duration stalled_{0};
};

absl::StatusOr<ReplayResult> Player::Play() {
  // Chunks that exist from the start are allocated before the first moment, and read as zeros.
  MEMTIDE_RETURN_IF_ERROR(node_.Open(sequence_.chunk_size));
  for (uint32_t chunk = 0; chunk < sequence_.chunks.size(); ++chunk) {
    if (sequence_.chunks[chunk].from_start) MEMTIDE_RETURN_IF_ERROR(Allocate(chunk));
  }
  ReplayResult result;
  Instant began = node_.now();
  LinkBytes moved_before;
  for (size_t iteration = 0; iteration < sequence_.iterations(); ++iteration) {
    MEMTIDE_RETURN_IF_ERROR(PlayIteration(iteration));
    IterationCost cost;
    cost.moved = node_.moved();
    cost.moved -= moved_before;
    cost.elapsed = node_.now() - began;
    cost.stalled = std::exchange(stalled_, Duration(0));
    began = node_.now();
    moved_before = node_.moved();
    result.iterations.push_back(cost);
    if (iteration < kWarmUpIterations) continue;
    result.counted += cost;
    ++result.counted_iterations;
  }
  return result;
}

absl::Status Player::PlayIteration(size_t iteration) {
  for (size_t i = sequence_.IterationBegin(iteration); i < sequence_.iteration_ends[iteration];
       ++i) {
    if (absl::Status status = PlayMoment(sequence_.moments[i]); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("moment ", i, " of the trace: ", status.message()));
    }
  }
  if (!stepped_.empty()) MEMTIDE_RETURN_IF_ERROR(EndStep());
  // The end is reported with the next call.
  CurrentReport().ends_iteration = true;
  return absl::OkStatus();
}

MomentReport& Player::CurrentReport() {
  // The moment was reported with an earlier use; `continues` adds to it.
  if (reports_.empty()) {
    reports_.emplace_back();
    reports_.back().continues = true;
  }
  return reports_.back();
}

absl::Status Player::PlayMoment(const PlayedMoment& moment) {
  if (moment.is_part) return AddPart(moment);
  if (reports_.size() > kReportAfter) {
    ReportCall report{node_.NextCall(), node_.session(), std::exchange(reports_, {})};
    MEMTIDE_RETURN_IF_ERROR(node_.Call(report).status());
  }
  reports_.push_back({moment.phase, moment.name, moment.own_device, moment.own_host, {}});
  size_t uses = 0;
  for (const ChunkEvent& event : moment.events) uses += event.IsUse();
  const Duration compute = Scaled(moment.compute);
  // A moment with uses passes its time in equal parts while their chunks are leased.
  if (uses == 0) node_.Pass(compute);
  for (const ChunkEvent& event : moment.events) {
    switch (event.kind) {
      case Kind::kAllocate:
        MEMTIDE_RETURN_IF_ERROR(Allocate(event.chunk));
        break;
      case Kind::kFree:
        MEMTIDE_RETURN_IF_ERROR(Free(event.chunk));
        break;
      case Kind::kRead:
      case Kind::kWrite:
        MEMTIDE_RETURN_IF_ERROR(Use(event, moment.on_host));
        node_.Pass(compute / static_cast<int64_t>(uses));
        break;
    }
  }
  return absl::OkStatus();
}

absl::Status Player::Use(const ChunkEvent& event, bool on_host) {
  FetchCall fetch;
  fetch.call = node_.NextCall();
  fetch.session = node_.session();
  fetch.tier = options_.device_slots > 0 && !on_host ? Tier::kDevice : Tier::kHost;
  // PatrickStar has one copy of a chunk only, so even a chunk that was only read is moved back.
  const bool writes = event.kind == Kind::kWrite || options_.policy == Policy::kPatrickStar;
  fetch.access = writes ? Access::kWrite : Access::kRead;
  fetch.chunks = {ids_[event.chunk]};
  CurrentReport().uses.push_back({ids_[event.chunk], fetch.access});
  fetch.moments = std::exchange(reports_, {});
  if (std::exchange(on_host_, on_host) != on_host) {
    // A chunk is leased in one tier at a time.
    for (absl::optional<uint32_t>* const leased : {&last_, &before_last_}) {
      if (leased->has_value()) fetch.releases.push_back(ids_[**leased]);
      leased->reset();
    }
  }
  if (last_ != event.chunk) {
    // The lease of a use ends with the fetch after the next one.
    if (before_last_.has_value() && before_last_ != event.chunk) {
      fetch.releases.push_back(ids_[*before_last_]);
    }
    before_last_ = std::exchange(last_, event.chunk);
  }
  // Virtual time passes in Call() only while the fetch waits, so all of it is a stall.
  const Instant start = node_.now();
  MEMTIDE_RETURN_IF_ERROR(node_.Call(fetch).status());
  stalled_ += node_.now() - start;
  return absl::OkStatus();
}

absl::Status Player::AddPart(const PlayedMoment& part) {
  std::set<uint32_t> read, written;
  for (const ChunkEvent& event : part.events) {
    read.insert(event.chunk);
    if (event.kind == Kind::kWrite) written.insert(event.chunk);
  }
  StepPart made;
  made.compute = Scaled(part.compute);
  for (const uint32_t chunk : read) made.reads.push_back(ids_[chunk]);
  for (const uint32_t chunk : written) {
    MEMTIDE_RETURN_IF_ERROR(MakeShadow(chunk));
    made.writes.push_back(shadows_[chunk]);
  }
  // A lease at the device, or one that writes, would exclude the part.
  MEMTIDE_RETURN_IF_ERROR(Release(read));
  stepped_.merge(written);
  parts_.Add(std::move(made));
  return absl::OkStatus();
}

absl::Status Player::EndStep() {
  const Instant start = node_.now();
  MEMTIDE_RETURN_IF_ERROR(parts_.Await());
  MEMTIDE_RETURN_IF_ERROR(Release(stepped_));
  CommitCall commit;
  commit.call = node_.NextCall();
  commit.session = node_.session();
  commit.step = ++last_step_;
  for (const uint32_t chunk : stepped_) {
    commit.chunks.push_back(ids_[chunk]);
    commit.shadows.push_back(shadows_[chunk]);
  }
  stepped_.clear();
  MEMTIDE_RETURN_IF_ERROR(node_.Call(commit).status());
  stalled_ += node_.now() - start;
  return absl::OkStatus();
}

absl::Status Player::Release(const std::set<uint32_t>& chunks) {
  ReleaseCall release;
  for (absl::optional<uint32_t>* const leased : {&last_, &before_last_}) {
    if (!leased->has_value() || chunks.count(**leased) == 0) continue;
    release.chunks.push_back(ids_[**leased]);
    leased->reset();
  }
  if (release.chunks.empty()) return absl::OkStatus();
  release.call = node_.NextCall();
  release.session = node_.session();
  release.request_id = node_.NextRequest();
  return node_.Call(release).status();
}

absl::Status Player::MakeShadow(uint32_t chunk) {
  if (shadows_[chunk] != ChunkId(0)) return absl::OkStatus();
  MEMTIDE_ASSIGN_OR_RETURN(shadows_[chunk],
                           AllocateOne(sequence_.chunks[chunk].kind, /*undefined=*/true));
  return absl::OkStatus();
}

absl::Status Player::Allocate(uint32_t chunk) {
  // The content of an activation ended, and its chunk stayed (Free).
  if (ids_[chunk] != ChunkId(0)) return absl::OkStatus();
  const PlayedChunk& played = sequence_.chunks[chunk];
  // An arena of activations writes before it reads.
  const bool undefined = played.undefined || played.kind == ChunkKind::kActivation;
  MEMTIDE_ASSIGN_OR_RETURN(ids_[chunk], AllocateOne(played.kind, undefined));
  return absl::OkStatus();
}

absl::StatusOr<ChunkId> Player::AllocateOne(ChunkKind kind, bool undefined) {
  AllocateCall allocate;
  allocate.call = node_.NextCall();
  allocate.session = node_.session();
  allocate.request_id = node_.NextRequest();
  allocate.count = 1;
  allocate.kind = kind;
  allocate.undefined = undefined;
  allocate.transient = kind == ChunkKind::kActivation;
  MEMTIDE_ASSIGN_OR_RETURN(const Reply reply, node_.Call(allocate));
  return std::get<AllocateReply>(reply.value).chunks.front();
}

// A trace has the Discard of an activation as the end of one chunk and the beginning of the next,
// and older memtides did just that. Either is played as a Discard.
absl::Status Player::Discard(uint32_t chunk) {
  DiscardCall discard;
  discard.call = node_.NextCall();
  discard.session = node_.session();
  discard.request_id = node_.NextRequest();
  discard.chunks = {ids_[chunk]};
  return node_.Call(discard).status();
}

absl::Status Player::Free(uint32_t chunk) {
  // Both calls end the chunk's lease.
  if (last_ == chunk) last_.reset();
  if (before_last_ == chunk) before_last_.reset();
  if (sequence_.chunks[chunk].kind == ChunkKind::kActivation) return Discard(chunk);
  FreeCall free;
  free.call = node_.NextCall();
  free.session = node_.session();
  free.request_id = node_.NextRequest();
  free.chunks = {std::exchange(ids_[chunk], ChunkId(0))};
  return node_.Call(free).status();
}

}  // namespace

IterationCost& IterationCost::operator+=(const IterationCost& other) {
  moved += other.moved;
  stalled += other.stalled;
  elapsed += other.elapsed;
  return *this;
}

// A node without SSD needs room for all chunks at its lowest tier.
bool NeedsDisk(const AccessSequence& sequence, const ReplayOptions& options) {
  const uint32_t lowest = options.host_slots > 0 ? options.host_slots : options.device_slots;
  return sequence.ssd_slots > 0 || lowest < MostChunks(sequence);
}

absl::Status CheckReplay(const AccessSequence& sequence, const ReplayOptions& options) {
  if (sequence.iterations() <= kWarmUpIterations) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the trace has ", sequence.iterations(), " complete iterations; the first ",
        kWarmUpIterations, " warm up, so that nothing is left to count. Trace a longer run"));
  }
  if (options.host_slots == 0 && NeedsDisk(sequence, options)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the trace has ", MostChunks(sequence), " chunks, more than the device's ",
        options.device_slots, " slots; chunks come from SSD by way of the host, give it 4 slots"));
  }
  const uint32_t least = std::min(options.host_slots > 0 ? options.host_slots : 4,
                                  options.device_slots > 0 ? options.device_slots : 4);
  if (options.host_slots + options.device_slots == 0 || least < 4) {
    return absl::InvalidArgumentError(absl::StrCat("a tier needs 4 slots at least; the device has ",
                                                   options.device_slots, " and the host ",
                                                   options.host_slots));
  }
  return absl::OkStatus();
}

absl::StatusOr<ReplayResult> Replay(const AccessSequence& sequence, const ReplayOptions& options) {
  MEMTIDE_RETURN_IF_ERROR(CheckReplay(sequence, options));
  return Player(sequence, options).Play();
}

}  // namespace memtide

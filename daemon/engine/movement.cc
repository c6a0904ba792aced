// Movement: how chunks reach a tier and leave it. What a chunk does next follows from its wishes
// and its copies alone; Advance() takes one step, and is called again when something changed.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/engine/state.h"

namespace memtide {

namespace {

constexpr Tier kMemoryTiers[] = {Tier::kDevice, Tier::kHost};

constexpr uint8_t Bit(Tier tier) { return static_cast<uint8_t>(1u << static_cast<int>(tier)); }

StartTransfer::Kind KindOf(absl::optional<Tier> from, Tier to) {
  using Kind = StartTransfer::Kind;
  if (!from.has_value()) return Kind::kZero;
  if (*from == Tier::kSsd) return Kind::kSsdToHost;
  if (to == Tier::kSsd) return Kind::kHostToSsd;
  return to == Tier::kDevice ? Kind::kHostToDevice : Kind::kDeviceToHost;
}

}  // namespace

void EngineState::Ready(uint32_t place) {
  if (chunks_[place].queued) return;
  chunks_[place].queued = true;
  ready_.push_back(place);
}

void EngineState::LookAtRoom(Job& job, Tier tier) {
  JobTier& part = job.tier(tier);
  if (!part.exists() || part.room_queued || tier == Tier::kSsd) return;
  part.room_queued = true;
  rooms_.emplace_back(&job, tier);
}

void EngineState::Settle() {
  do {
    while (!ready_.empty() || !rooms_.empty() || MoveAhead()) {
      for (size_t i = 0; i < ready_.size(); ++i) {
        chunks_[ready_[i]].queued = false;
        Advance(ready_[i]);
      }
      ready_.clear();
      if (rooms_.empty()) continue;
      const auto [job, tier] = rooms_.back();
      rooms_.pop_back();
      job->tier(tier).room_queued = false;
      MakeRoom(*job, tier);
    }
  } while (ServeFreed());
}

void EngineState::Advance(uint32_t place) {
  Chunk& chunk = chunks_[place];
  if (!chunk.live() || chunk.flight.has_value()) return;
  queued_for_ = 0;
  if (chunk.pinned()) StopPrefetch(chunk);
  if (chunk.push_from.has_value() && chunk.pinned_at(*chunk.push_from)) StopPush(chunk);
  if (!chunk.fetches.empty()) {
    if (Bring(place, chunk.hold_tier)) AnswerFetches(place);
  } else if (chunk.prefetch_to.has_value()) {
    if (Bring(place, *chunk.prefetch_to)) StopPrefetch(chunk);
  } else if (chunk.evict_to.has_value()) {
    bool gone = true;
    for (const Tier tier : kMemoryTiers) {
      if (tier >= *chunk.evict_to || tier == chunk.job->home || chunk.pinned()) continue;
      gone = gone && Push(place, tier);
    }
    if (chunk.pinned()) {
      FinishEvicts(place, absl::AbortedError(absl::StrCat("chunk ", IdOf(place).value(),
                                                          " was leased before it had left")));
    } else if (gone) {
      FinishEvicts(place, absl::OkStatus());
    }
  }
  // Also from under a chunk that waits for a faster tier: what leaves there may need this very
  // slot.
  if (!chunk.flight.has_value() && chunk.push_from.has_value() && Push(place, *chunk.push_from)) {
    StopPush(chunk);
  }
  if (!chunk.flight.has_value() && chunk.clean_from.has_value() &&
      Clean(place, *chunk.clean_from)) {
    chunk.clean_from.reset();
  }
  LookAhead(*chunk.job);
  if (chunk.flight.has_value()) return;
  for (const Tier tier : kMemoryTiers) {
    if ((chunk.waits_for & ~queued_for_ & Bit(tier)) != 0) StopWaitingForSlot(place, tier);
  }
  FreeUnusedSlots(place);
  for (const Tier tier : kMemoryTiers) UpdateVictim(place, tier);
}

// A slot without a copy is kept only by a chunk that is on its way to it.
void EngineState::FreeUnusedSlots(uint32_t place) {
  Chunk& chunk = chunks_[place];
  if (!chunk.fetches.empty() || chunk.prefetch_to.has_value()) return;
  for (const Tier tier : kMemoryTiers) {
    if (chunk.slot(tier) && !chunk.valid_at(tier) && tier != chunk.job->home) {
      DropCopy(place, tier);
    }
  }
}

void EngineState::AnswerFetches(uint32_t place) {
  std::vector<FetchOperation*> fetches;
  fetches.swap(chunks_[place].fetches);
  for (FetchOperation* fetch : fetches) {
    if (--fetch->missing == 0) Grant(*fetch);
  }
}

bool EngineState::Bring(uint32_t place, Tier tier) {
  Chunk& chunk = chunks_[place];
  if (chunk.valid_at(tier)) return true;
  if (!TakeSlot(place, tier)) return false;
  if (chunk.valid == 0 && chunk.overwrite) {
    // It is about to be written whole.
    chunk.valid = Bit(tier);
    chunk.blank = true;
    return true;
  }
  if (chunk.valid == 0 && chunk.undefined) {
    chunk.valid = Bit(tier);
    Touch(place);
    return true;
  }
  if (chunk.valid == 0) {
    Start(place, absl::nullopt, tier);
  } else if (tier == Tier::kDevice && !chunk.valid_at(Tier::kHost)) {
    // From SSD by way of the host. The host slot is taken after the device slot, never before.
    if (TakeSlot(place, Tier::kHost)) Start(place, Tier::kSsd, Tier::kHost);
  } else if (tier == Tier::kDevice) {
    Start(place, Tier::kHost, tier);
  } else {
    Start(place, chunk.valid_at(Tier::kDevice) ? Tier::kDevice : Tier::kSsd, tier);
  }
  return false;
}

bool EngineState::IsOnlyCopy(const Chunk& chunk, Tier tier) const {
  uint8_t valid = chunk.valid;
  // The device's memory ends with the daemon.
  if (chunk.job->kept && tier == Tier::kHost) valid &= static_cast<uint8_t>(~Bit(Tier::kDevice));
  return valid == Bit(tier);
}

bool EngineState::Push(uint32_t place, Tier tier) {
  Chunk& chunk = chunks_[place];
  if (chunk.flight.has_value()) return false;
  if (!chunk.slot(tier)) return true;
  if (!IsOnlyCopy(chunk, tier)) {
    if (chunk.valid_at(tier)) {
      ++counters_.evictions;
      if (!chunk.wrote_back) ++counters_.dropped_clean;
      chunk.job->trace.Moved(Trace(chunk, tier, absl::nullopt));
    }
    chunk.wrote_back = false;
    DropCopy(place, tier);
    return true;
  }
  const Tier lower = tier == Tier::kDevice ? Tier::kHost : Tier::kSsd;
  if (!TakeSlot(place, lower)) return false;
  chunk.wrote_back = true;
  Start(place, tier, lower);
  return false;
}

bool EngineState::Clean(uint32_t place, Tier tier) {
  Chunk& chunk = chunks_[place];
  const Tier lower = tier == Tier::kDevice ? Tier::kHost : Tier::kSsd;
  const bool wanted = IsOnlyCopy(chunk, tier) && !chunk.pinned() && !chunk.push_from.has_value();
  if (!wanted) return true;
  if (!TakeSlot(place, lower)) return false;
  Start(place, tier, lower);
  return true;
}

void EngineState::StopPush(Chunk& chunk) {
  if (!chunk.push_from.has_value()) return;
  --chunk.job->tier(*chunk.push_from).pushing;
  LookAtRoom(*chunk.job, *chunk.push_from);
  chunk.push_from.reset();
}

void EngineState::StopPrefetch(Chunk& chunk) {
  if (!chunk.prefetch_to.has_value()) return;
  --chunk.job->tier(*chunk.prefetch_to).prefetches;
  chunk.prefetch_to.reset();
}

bool EngineState::TakeSlot(uint32_t place, Tier tier) {
  Chunk& chunk = chunks_[place];
  if (chunk.slot(tier)) return true;
  JobTier& part = chunk.job->tier(tier);
  const auto found = std::find(part.slot_queue.begin(), part.slot_queue.end(), place);
  const size_t ahead = found - part.slot_queue.begin();
  if (part.slots->spare_slots() > ahead) {
    chunk.slot(tier) = part.slots->Take();
    StopWaitingForSlot(place, tier);
    return true;
  }
  if (found == part.slot_queue.end()) {
    part.slot_queue.push_back(place);
    chunk.waits_for |= Bit(tier);
  }
  queued_for_ |= Bit(tier);
  LookAtRoom(*chunk.job, tier);
  return false;
}

void EngineState::StopWaitingForSlot(uint32_t place, Tier tier) {
  Chunk& chunk = chunks_[place];
  if ((chunk.waits_for & Bit(tier)) == 0) return;
  chunk.waits_for &= static_cast<uint8_t>(~Bit(tier));
  std::deque<uint32_t>& queue = chunk.job->tier(tier).slot_queue;
  queue.erase(std::find(queue.begin(), queue.end(), place));
  LookAtRoom(*chunk.job, tier);
}

void EngineState::DropCopy(uint32_t place, Tier tier) {
  Chunk& chunk = chunks_[place];
  Touch(place);
  chunk.valid &= static_cast<uint8_t>(~Bit(tier));
  chunk.slot(tier).Free();
  // What another copy is worth has changed, too.
  Rank(place);
  JobTier& part = chunk.job->tier(tier);
  if (chunk.job->foresight.known()) {
    part.looked_ahead = std::min(part.looked_ahead, NextUseOfContent(chunk));
  }
  LookAtRoom(*chunk.job, tier);
}

void EngineState::MakeRoom(Job& job, Tier tier) {
  AdmitWaiting(job, tier);
  JobTier& part = job.tier(tier);
  part.by_slot ? GiveSurplusBack(job) : EmptyWithheld(job, tier);
  const size_t free = part.slots->spare_slots();
  const size_t waiting = part.slot_queue.size();
  for (size_t i = 0; i < std::min(free, waiting); ++i) Ready(part.slot_queue[i]);
  const size_t wanted = waiting + part.slots->surplus_slots();
  if (waiting <= free) part.pressed = false;
  if (wanted <= free + part.pushing) return;
  const bool shrinks = part.slots->surplus_slots() > 0 || part.withheld > 0;
  if (!shrinks && !part.can_grow()) Raise(job, tier, static_cast<uint32_t>(waiting - free));
  if (part.can_grow()) return Grow(job, tier);
  for (size_t missing = wanted - free - part.pushing; missing > 0; --missing) {
    const absl::optional<Candidate> victim = part.victims.Next(job.foresight.now());
    if (!victim.has_value()) return TakeWithheld(job, tier);
    const uint32_t place = job.members[victim->member];
    chunks_[place].push_from = tier;
    ++part.pushing;
    UpdateVictim(place, tier);
    Ready(place);
  }
}

MemoryPlace EngineState::PlaceOf(const Chunk& chunk, Tier tier) const {
  return PlaceOfSlot(*chunk.job, tier, chunk.slot(tier).number());
}

void EngineState::Start(uint32_t place, absl::optional<Tier> from, Tier to) {
  Chunk& chunk = chunks_[place];
  StartTransfer start;
  start.transfer = TransferId(next_transfer_++);
  start.kind = KindOf(from, to);
  start.size = chunk.job->chunk_size;
  if (from == Tier::kSsd || to == Tier::kSsd) {
    const MemoryPlace file = PlaceOf(chunk, Tier::kSsd);
    start.store = {StoreId(file.region.value()), file.offset};
  }
  if (from.has_value() && *from != Tier::kSsd) start.from = PlaceOf(chunk, *from);
  if (to != Tier::kSsd) start.to = PlaceOf(chunk, to);
  chunk.flight =
      Flight{start.transfer, start.kind, from, to, chunk.version, Trace(chunk, from, to)};
  ++chunk.job->flights[static_cast<int>(start.kind)];
  transfers_.emplace(start.transfer, place);
  for (const Tier tier : kMemoryTiers) UpdateVictim(place, tier);
  Emit(start);
}

void EngineState::On(const TransferDone& event) {
  const auto found = transfers_.find(event.transfer);
  if (found == transfers_.end()) return;
  const uint32_t place = found->second;
  transfers_.erase(found);
  Chunk& chunk = chunks_[place];
  const Flight flight = *chunk.flight;
  chunk.flight.reset();
  --chunk.job->flights[static_cast<int>(flight.kind)];
  if (!event.status.ok()) ++counters_.transfers_failed;
  if (chunk.dying) return ForgetChunk(place);
  if (!event.status.ok()) return TransferFailed(place, flight, event.status);

  using Kind = StartTransfer::Kind;
  const Bytes size = chunk.job->chunk_size;
  Bytes& moved = flight.kind == Kind::kZero           ? counters_.zeroed
                 : flight.kind == Kind::kHostToDevice ? counters_.host_to_device
                 : flight.kind == Kind::kDeviceToHost ? counters_.device_to_host
                 : flight.kind == Kind::kSsdToHost    ? counters_.ssd_read
                                                      : counters_.ssd_written;
  moved += size;
  TracedMove traced = flight.traced;
  traced.duration = now_ - traced.start;
  NoteLink(*chunk.job, flight.kind, traced.start);
  chunk.job->trace.Moved(traced);
  chunk.failures = 0;
  if (flight.version == chunk.version) {
    Touch(place);
    chunk.valid |= Bit(flight.to);
    const bool upwards = flight.from.has_value() && flight.to < *flight.from;
    if (upwards && !chunk.pinned()) chunk.came_ahead |= Bit(flight.to);
    if (flight.to != Tier::kSsd) chunk.arrived[static_cast<int>(flight.to)] = ++arrivals_;
    if (flight.to == Tier::kHost && chunk.job->foresight.known()) {
      // From here it can come to the device ahead of its use.
      JobTier& device = chunk.job->tier(Tier::kDevice);
      device.looked_ahead = std::min(device.looked_ahead, NextUseOfContent(chunk));
    }
  } else if (flight.to != chunk.job->home) {
    DropCopy(place, flight.to);  // A writer came in between: what was copied is old.
  }
  const bool disk = flight.kind == Kind::kSsdToHost || flight.kind == Kind::kHostToSsd;
  for (FetchOperation* fetch : chunk.fetches) {
    (disk ? fetch->waited_for_ssd : fetch->waited_for_copy) = true;
  }
  Ready(place);
}

void EngineState::TransferFailed(uint32_t place, const Flight& flight, const absl::Status& status) {
  Chunk& chunk = chunks_[place];
  Job& job = *chunk.job;
  const absl::Status named(status.code(),
                           absl::StrCat("chunk ", IdOf(place).value(), ": ", status.message()));
  job.last_error = named;
  if (flight.to != job.home && !chunk.valid_at(flight.to)) DropCopy(place, flight.to);
  if (flight.from.has_value() && flight.to > *flight.from) {
    // The source stays; somebody else leaves meanwhile.
    StopPush(chunk);
    FinishEvicts(place, named);
    chunk.cooling = true;
    job.cooling.push_back(place);
  }
  if (!chunk.fetches.empty() || chunk.prefetch_to.has_value()) {
    if (++chunk.failures >= 2) {  // Once more helps against a passing error; no more than once.
      chunk.failures = 0;
      StopPrefetch(chunk);
      const std::vector<FetchOperation*> fetches = chunk.fetches;
      for (FetchOperation* fetch : fetches) Fail(*fetch, named);
    }
  }
  Ready(place);
}

void EngineState::On(const PrefetchCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  Job& job = *session->job;
  absl::StatusOr<std::vector<uint32_t>> places = Resolve(job, event.chunks);
  if (!places.ok()) return Refuse(event.call, places.status());
  if (event.tier == Tier::kSsd || !job.tier(event.tier).exists()) {
    return Refuse(event.call,
                  absl::InvalidArgumentError(absl::StrCat("chunks cannot be prefetched to the ",
                                                          TierName(event.tier), " tier")));
  }
  JobTier& part = job.tier(event.tier);
  const uint32_t most = std::max(uint32_t{1}, part.slots->size() / 4);
  for (const uint32_t place : *places) {
    Chunk& chunk = chunks_[place];
    const bool busy = chunk.pinned() || chunk.prefetch_to.has_value() ||
                      chunk.evict_to.has_value() || chunk.valid_at(event.tier);
    const bool room = part.slots->spare_slots() > 0 || part.victims.size() > 0 || part.can_grow();
    if (busy || !room || !part.slot_queue.empty() || part.prefetches >= most) continue;
    chunk.prefetch_to = event.tier;
    chunk.evicted = false;
    ++part.prefetches;
    StopPush(chunk);
    Ready(place);
  }
  Answer(event.call);
}

}  // namespace memtide

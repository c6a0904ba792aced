// Transfers: what a chunk's copies are when one starts, has ended, and has failed.
//
// A write to a slower tier that failed is tried again after a pause, which grows until one ends
// well: a drive that refuses all writes costs a job one try a second, and later one a minute.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/residency/copies.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

namespace {

// The pauses between tries of what fails each time.
constexpr Duration kFirstPause = std::chrono::seconds(1);
constexpr Duration kLongestPause = std::chrono::minutes(1);
constexpr Duration kFailureReportPeriod = std::chrono::minutes(1);

StartTransfer::Kind KindOf(absl::optional<Tier> from, Tier to) {
  using Kind = StartTransfer::Kind;
  if (!from.has_value()) return Kind::kZero;
  if (*from == Tier::kSsd) return Kind::kSsdToHost;
  if (to == Tier::kSsd) return Kind::kHostToSsd;
  return to == Tier::kDevice ? Kind::kHostToDevice : Kind::kDeviceToHost;
}

}  // namespace

void Residency::Start(ChunkIndex index, absl::optional<Tier> from, Tier to) {
  Chunk& chunk = core_.chunks[index];
  StartTransfer start;
  start.kind = KindOf(from, to);
  start.size = chunk.job->chunk_size;
  start.job = chunk.job->id;
  start.awaited = !chunk.uses().waiters.empty();
  if (from == Tier::kSsd || to == Tier::kSsd) {
    const MemoryPlace file = PlaceOf(chunk, Tier::kSsd);
    start.store = {StoreId(file.region.value()), file.offset};
  }
  if (from.has_value() && *from != Tier::kSsd) start.from = PlaceOf(chunk, *from);
  if (to != Tier::kSsd) start.to = PlaceOf(chunk, to);
  start.make_sums = to == Tier::kSsd && IsVerified(chunk);
  if (from == Tier::kSsd) start.sums = SumsToCompare(chunk);
  Begin(index, from, to, std::move(start));
}

TransferId Residency::Begin(ChunkIndex index, absl::optional<Tier> from, Tier to,
                            StartTransfer&& start) {
  Chunk& chunk = core_.chunks[index];
  const TransferId transfer = start.transfer = TransferId(next_transfer_++);
  copies_[index].flight = std::make_unique<Flight>(
      Flight{transfer, start.kind, from, to, chunk.version, Trace(chunk, from, to), start.awaited});
  if (!start.sums.empty()) copies_[index].flight->verified = start.size;
  if (from.has_value()) chunk.job->forecast.links().Start({*from, to});
  core_.transfers.emplace(transfer, index);
  victims_.Update(index);
  core_.Emit(std::move(start));
  return transfer;
}

void Residency::Expedite(ChunkIndex index) {
  Flight* const flight = copies_[index].flight.get();
  using Kind = StartTransfer::Kind;
  if (flight == nullptr || flight->awaited) return;
  if (flight->kind != Kind::kSsdToHost && flight->kind != Kind::kVerifySsd) return;
  flight->awaited = true;
  core_.Emit(AwaitTransfer{flight->transfer});
}

void Residency::On(const TransferDone& event) {
  const auto found = core_.transfers.find(event.transfer);
  if (found == core_.transfers.end()) return;
  const ChunkIndex index = found->second;
  core_.transfers.erase(found);
  Chunk& chunk = core_.chunks[index];
  const Flight flight = *chunk.copies().flight;
  copies_[index].flight = nullptr;
  core_.work.NoteMovement();
  if (flight.kind == StartTransfer::Kind::kVerifySsd) {
    if (event.wrong_bytes) ++core_.counters.wrong_bytes;
    core_.work.Send(ScrubEnded{core_.IdOf(index), flight.version, flight.verified, event.status});
    if (!chunk.live()) return ForgetAfterTransfer(index);
    return core_.ScheduleChunk(index);
  }
  JobForecast& forecast = chunk.job->forecast;
  if (flight.from.has_value()) forecast.links().End({*flight.from, flight.to});
  const absl::Status status =
      flight.is_void ? absl::UnavailableError("the device was lost during the copy") : event.status;
  const bool check = flight.kind == StartTransfer::Kind::kCompareDeviceWithHost;
  if (check) return CheckDone(index, flight, status);
  if (flight.from.has_value() && flight.to == Tier::kSsd) {
    core_.writes.End(flight.traced.start, WriteOf(index), status.ok());
  }
  if (!status.ok()) NoteFailure(index, status);
  if (event.wrong_bytes) ++core_.counters.wrong_bytes;
  if (!chunk.live()) return ForgetAfterTransfer(index);
  if (!status.ok()) return TransferFailed(index, flight, event, status);

  CountTransfer(*chunk.job, flight);
  chunk.failures = 0;
  const bool downwards = flight.from.has_value() && flight.to > *flight.from;
  if (downwards && flight.to == chunk.job->failed_writes.to) chunk.job->failed_writes = {};
  if (flight.version == chunk.version) {
    Arrived(index, flight, event);
  } else if (!chunk.KeepsSlot(flight.to)) {
    DropCopy(index, flight.to);  // The content has ended meanwhile: the copied version is old.
  }
  const bool disk = flight.from == Tier::kSsd || flight.to == Tier::kSsd;
  for (Waiter* waiter : chunk.uses().waiters) {
    (disk ? waiter->waited_for_ssd : waiter->waited_for_copy) = true;
  }
  core_.ScheduleChunk(index);
}

// The copy at its destination is valid from now on.
void Residency::Arrived(ChunkIndex index, const Flight& flight, const TransferDone& event) {
  Chunk& chunk = core_.chunks[index];
  JobForecast& forecast = chunk.job->forecast;
  core_.MarkDirty(index);
  Copies& copies = copies_[index];
  copies.valid.Add(flight.to);
  copies.unreadable = false;
  if (flight.to == Tier::kSsd) {
    copies.sums = event.sums;
    copies.unflushed = false;
  }
  const bool upwards = flight.from.has_value() && flight.to < *flight.from;
  // Until its use comes, PlannedToStay() retains the copy, although it is past its last use.
  if (upwards && !chunk.pinned()) chunk.prefetched_to.Add(flight.to);
  if (flight.to != Tier::kSsd)
    copies.insertion_seq[static_cast<int>(flight.to)] = ++core_.insertions;
  if (flight.is_unflushed) DistrustSsd(index);
  if (flight.to == Tier::kHost && copies.unflushed) EndSsdCopy(index);
  if (flight.to == Tier::kHost && forecast.predictor().has_prediction()) {
    // From host memory the chunk can be prefetched to the device.
    forecast.PrefetchAgainFrom(Tier::kDevice, NextUseOfContent(core_.chunks, chunk));
  }
}

void Residency::CountTransfer(Job& job, const Flight& flight) {
  using Kind = StartTransfer::Kind;
  Bytes& moved = flight.kind == Kind::kZero           ? core_.counters.zeroed
                 : flight.kind == Kind::kHostToDevice ? core_.counters.host_to_device
                 : flight.kind == Kind::kDeviceToHost ? core_.counters.device_to_host
                 : flight.kind == Kind::kSsdToHost    ? core_.counters.ssd_read
                                                      : core_.counters.ssd_written;
  moved += job.chunk_size;
  core_.counters.verified += flight.verified;
  TracedMove traced = flight.traced;
  traced.duration = core_.now - traced.start;
  if (flight.from.has_value()) {
    job.forecast.links().Measure({*flight.from, flight.to}, traced.start, core_.now);
  }
  job.trace.Moved(traced);
}

void Residency::ForgetAfterTransfer(ChunkIndex index) {
  const JobId job = core_.chunks[index].job->id;
  if (ReleaseIfUnused(index)) core_.work.Send(AllocationsPossible{job});
}

void Residency::TransferFailed(ChunkIndex index, const Flight& flight, const TransferDone& done,
                               const absl::Status& status) {
  Chunk& chunk = core_.chunks[index];
  Job& job = *chunk.job;
  absl::Status named(status.code(),
                     absl::StrCat("chunk ", core_.IdOf(index).value(), ": ", status.message()));
  job.last_error = named;
  const bool on_device = flight.from == Tier::kDevice || flight.to == Tier::kDevice;
  const bool is_lost = absl::IsDataLoss(status) && on_device && DeviceMemoryFailed(index, named);
  bool calls_fail = is_lost;
  if (!chunk.KeepsSlot(flight.to) && !chunk.valid_at(flight.to)) DropCopy(index, flight.to);
  const absl::optional<JobSnapshots::Saving>& saving = job.snapshots.saving;
  if (flight.from.has_value() && flight.to > *flight.from) {
    // The copy stays, and another victim leaves instead.
    CancelEviction(chunk);
    if (!chunk.uses().evicts.empty()) core_.work.Send(EvictionFailed{core_.IdOf(index), named});
    calls_fail = calls_fail || !chunk.uses().evicts.empty();
    // The failed victim would be chosen again at once, and fail again.
    RetryLater(index);
    FailedWrites& failed = job.failed_writes;
    if (failed.to != flight.to) failed = {flight.to, 0, core_.now};
    if (core_.now >= failed.next_try) {
      const Duration pause = kFirstPause * (1 << std::min<uint32_t>(failed.tries++, 6));
      failed.next_try = core_.now + std::min(pause, kLongestPause);
    }
    // One retry helps against a passing error.
    const bool awaits_writes = saving.has_value() && !saving->is_started;
    if (failed.tries >= 2 && awaits_writes) core_.work.Send(WritesFail{job.id, named});
  }
  const bool is_awaited = !chunk.uses().waiters.empty() && !is_lost;
  const bool is_for_snapshot = flight.from == Tier::kSsd && chunk.copies().unflushed &&
                               saving.has_value() && saving->unwritten.count(index) > 0;
  if (is_awaited || is_for_snapshot || chunk.prefetch_to.has_value()) {
    if (++chunk.failures >= 2) {  // One retry helps against a passing error.
      chunk.failures = 0;
      const bool lost = flight.from == Tier::kSsd && absl::IsDataLoss(status);
      // The content may have been written or exchanged meanwhile.
      if (lost && flight.version == chunk.version && BadCopy(index, status)) return;
      if (done.wrong_bytes) {
        named = absl::DataLossError(
            absl::StrCat(named.message(), "; it was read twice, and no other copy is valid. ",
                         LastMomentsOf(chunk), "Resume from a checkpoint"));
      }
      StopPrefetch(chunk);
      if (is_for_snapshot) core_.work.Send(SnapshotFails{job.id, named});
      if (is_awaited) core_.work.Send(PromotionFailed{core_.IdOf(index), named});
      calls_fail = calls_fail || is_awaited;
    }
  }
  // Signals list the chunk behind those of the calls that fail.
  if (!calls_fail) core_.ScheduleChunk(index);
}

void Residency::RetryLater(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  if (std::exchange(chunk.retry_after_tick, true)) return;
  chunk.job->retry_after_tick.push_back(core_.IdOf(index));
}

// While all writes fail, a single chunk is tried after each pause.
void Residency::RetryWrites(Job& job) {
  const bool fail = job.failed_writes.tries > 0;
  if (fail && core_.now < job.failed_writes.next_try) return;
  while (!job.retry_after_tick.empty()) {
    const absl::optional<ChunkIndex> index = core_.chunks.Find(job.retry_after_tick.front());
    job.retry_after_tick.pop_front();
    if (!index.has_value()) continue;  // It was freed.
    core_.chunks[*index].retry_after_tick = false;
    core_.ScheduleChunk(*index);
    if (fail) return;
  }
}

void Residency::NoteFailure(ChunkIndex index, const absl::Status& status) {
  ++core_.counters.transfers_failed;
  Job& job = *core_.chunks[index].job;
  ++job.unreported.count;
  job.unreported.last = absl::Status(
      status.code(), absl::StrCat("chunk ", core_.IdOf(index).value(), ": ", status.message()));
  ReportFailures(job);
}

void Residency::ReportFailures(Job& job) {
  UnreportedFailures& failures = job.unreported;
  if (failures.count == 0) return;
  if (failures.reported_at.has_value() && core_.now - *failures.reported_at < kFailureReportPeriod)
    return;
  core_.Emit(TransfersFail{job.id, job.name, failures.count, failures.last});
  failures = {0, absl::OkStatus(), core_.now};
}

}  // namespace memtide

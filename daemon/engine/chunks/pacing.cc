// Pacing: evictions to SSD wait for the daily budgets of drives and users (writes/ssd_writes.h).
//
// A chunk that waits keeps its copy, and everything else goes on: fetches that need its slot wait
// with it, as for a slow drive. They do not expire, since the wait ends by itself.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/state.h"
#include "proto/protocol.h"

namespace memtide {

namespace {

// Time between two reports that evictions of a user wait.
constexpr Duration kWaitReportPeriod = std::chrono::hours(1);

}  // namespace

void EngineState::NoteStripes(StoreId store, StripeCounts counts) {
  if (writes_.drives() < 2) return;
  const bool known = counts.size() == writes_.drives() && Stripes::Valid(counts);
  if (!known) counts = Stripes::Equal(writes_.drives());
  stripes_.emplace(store.value(), Stripes(std::move(counts)));
}

SsdWrite EngineState::WriteOf(ChunkIndex index) const {
  const Chunk& chunk = chunks_[index];
  const MemoryPlace place = PlaceOf(chunk, Tier::kSsd);
  const Bytes size = chunk.job->chunk_size;
  SsdWrite write{index, chunk.job->id, chunk.job->uid, std::vector<Bytes>(writes_.drives()),
                 writes_.WithBudget(chunk.job->groups)};
  const auto stripes = stripes_.find(place.region.value());
  if (stripes == stripes_.end()) {
    write.parts[0] = size;  // The only drive.
    return write;
  }
  for (Bytes at = place.offset; at < place.offset + size;) {
    const Bytes end = std::min(stripes->second.EndOfStripe(at), place.offset + size);
    write.parts[stripes->second.DirectoryOf(at)] += end - at;
    at = end;
  }
  return write;
}

bool EngineState::BeginWrite(ChunkIndex index) {
  Chunk& chunk = chunks_[index];
  if (writes_.Begin(now_, WriteOf(index))) {
    if (chunk.waits_for.has(Tier::kSsd)) chunk.job->waited_for_budget = now_;
    chunk.waits_for.Remove(Tier::kSsd);
    return true;
  }
  if (!chunk.waits_for.has(Tier::kSsd)) ReportWait(index);
  chunk.waits_for.Add(Tier::kSsd);
  queued_for_.Add(Tier::kSsd);
  return false;
}

void EngineState::StopWaitingForWrite(ChunkIndex index) {
  Chunk& chunk = chunks_[index];
  if (!chunk.waits_for.has(Tier::kSsd)) return;
  chunk.waits_for.Remove(Tier::kSsd);
  writes_.Withdraw(index);
}

// What waits for a budget waits anew.
void EngineState::SetBudgets(const std::vector<Quota>& quotas) {
  const std::vector<ChunkIndex> waiting = writes_.Waiting();
  for (const ChunkIndex index : waiting) StopWaitingForWrite(index);
  writes_.SetQuotas(quotas);
  for (const ChunkIndex index : waiting) ScheduleChunk(index);
}

void EngineState::ServeWrites() {
  for (const ChunkIndex index : writes_.Serve(now_)) ScheduleChunk(index);
}

void EngineState::ReportWait(ChunkIndex index) {
  const uint32_t uid = chunks_[index].job->uid;
  const auto found = reported_waits_.find(uid);
  if (found != reported_waits_.end() && now_ - found->second < kWaitReportPeriod) return;
  for (auto report = reported_waits_.begin(); report != reported_waits_.end();) {
    report = now_ - report->second < kWaitReportPeriod ? std::next(report)
                                                       : reported_waits_.erase(report);
  }
  reported_waits_[uid] = now_;
  Emit(WritesWait{uid, writes_.AwaitedBudget(now_, uid)});
}

bool EngineState::WaitedForBudget(const Job& job, Instant since) const {
  return writes_.WaitingOf(job.id) > 0 ||
         (job.waited_for_budget.has_value() && *job.waited_for_budget > since);
}

absl::Status EngineState::CallAgain(const std::string& why) {
  absl::Status status = absl::UnavailableError(why);
  status.SetPayload(kCallAgain, absl::Cord());
  return status;
}

absl::Status EngineState::AwaitsBudget(const std::string& what) {
  return CallAgain(absl::StrCat(what,
                                " must wait for a daily budget of writes to SSD (`memtide status` "
                                "has it); the wait goes on when the call comes again"));
}

}  // namespace memtide

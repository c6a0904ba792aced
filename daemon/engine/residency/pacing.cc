// Pacing: evictions to SSD wait for the daily budgets of drives and users (writes/ssd_writes.h).
//
// A chunk that waits keeps its copy, and everything else goes on: fetches that need its slot wait
// with it, as for a slow drive. They do not expire, since the wait ends by itself.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/residency/copies.h"
#include "daemon/engine/residency/residency.h"
#include "proto/protocol.h"

namespace memtide {

namespace {

// Time between two reports that evictions of a user wait.
constexpr Duration kWaitReportPeriod = std::chrono::hours(1);

}  // namespace

SsdWrite Residency::WriteOf(ChunkIndex index) const {
  const Chunk& chunk = core_.chunks[index];
  const Job& job = *chunk.job;
  return {index, job.id, job.uid, memory_.BytesByDrive(PlaceOf(chunk, Tier::kSsd), job.chunk_size),
          core_.writes.WithBudget(job.groups)};
}

bool Residency::BeginWrite(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  if (core_.writes.Begin(core_.now, WriteOf(index))) {
    if (chunk.waits_for.has(Tier::kSsd)) chunk.job->waited_for_budget = core_.now;
    chunk.waits_for.Remove(Tier::kSsd);
    return true;
  }
  if (!chunk.waits_for.has(Tier::kSsd)) ReportWait(index);
  chunk.waits_for.Add(Tier::kSsd);
  queued_for_.Add(Tier::kSsd);
  return false;
}

void Residency::StopWaitingForWrite(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  if (!chunk.waits_for.has(Tier::kSsd)) return;
  chunk.waits_for.Remove(Tier::kSsd);
  core_.writes.Withdraw(index);
}

// Chunks that wait for a budget wait anew.
void Residency::SetBudgets(const std::vector<Quota>& quotas) {
  const std::vector<ChunkIndex> waiting = core_.writes.Waiting();
  for (const ChunkIndex index : waiting) StopWaitingForWrite(index);
  core_.writes.SetQuotas(quotas);
  for (const ChunkIndex index : waiting) core_.ScheduleChunk(index);
}

void Residency::ServeWrites() {
  for (const ChunkIndex index : core_.writes.Serve(core_.now)) core_.ScheduleChunk(index);
}

void Residency::ReportWait(ChunkIndex index) {
  const uint32_t uid = core_.chunks[index].job->uid;
  const auto found = reported_waits_.find(uid);
  if (found != reported_waits_.end() && core_.now - found->second < kWaitReportPeriod) return;
  for (auto report = reported_waits_.begin(); report != reported_waits_.end();) {
    report = core_.now - report->second < kWaitReportPeriod ? std::next(report)
                                                            : reported_waits_.erase(report);
  }
  reported_waits_[uid] = core_.now;
  core_.Emit(WritesWait{uid, core_.writes.AwaitedBudget(core_.now, uid)});
}

bool Residency::WaitedForBudget(const Job& job, Instant since) const {
  return core_.writes.WaitingOf(job.id) > 0 ||
         (job.waited_for_budget.has_value() && *job.waited_for_budget > since);
}

void Residency::On(const SetQuotasCall& event) {
  if (event.number > quotas_number_) {
    quotas_number_ = event.number;
    core_.ledger.quotas().SetQuotas(event.quotas);
    SetBudgets(event.quotas);
    memory_.ShrinkOverQuota();
  }
  core_.Answer(event.call);
}

}  // namespace memtide

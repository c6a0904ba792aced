// Snapshots: what a durable job has on stable storage, so that a step that was answered outlives
// the machine.
//
// When a step is committed that is to be durable, each content of the job that is not on SSD is
// written there, and then a SaveSnapshot names the place of each, as records do (record.cc). The
// commit is answered when the snapshot is on stable storage. The slots that it names stay as they
// are until the next one is: they are in quarantine, and a chunk that is written to SSD again takes
// another slot. So the job needs a second slot for each chunk (Job::HomeSlotsFor).
//
// A snapshot has all that the job holds at one moment, whatever happens beside it. So it has one
// step of all ranks, which commit together (kept_ranks.cc). Lost with the machine are gradients and
// shadow chunks, which the step has used up, what a session is writing, and what chunks had before
// they were ever written to SSD.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/engine/errors.h"
#include "daemon/engine/records/records.h"

namespace memtide {

namespace {

constexpr Duration kPauseAfterFailure = std::chrono::minutes(1);
// Chunks that are read at once to be written again.
constexpr size_t kMostReads = 4;

bool IsBeingWritten(const Chunk& chunk) {
  return std::any_of(chunk.uses().pins.begin(), chunk.uses().pins.end(),
                     [](const Pin& pin) { return pin.granted() && pin.access == Access::kWrite; });
}

// Whether the job is not whole without the content of the chunk.
bool BelongsInSnapshot(const Chunk& chunk) {
  const bool has_content = chunk.has_content() && !chunk.copies().torn && !chunk.blank;
  return chunk.live() && !chunk.transient && has_content && !IsBeingWritten(chunk) &&
         !chunk.is_shadow && chunk.kind != ChunkKind::kGradient;
}

// Whether the SSD has the content, and is not known to have failed to flush it.
bool IsOnSsd(const Chunk& chunk) { return chunk.valid_at(Tier::kSsd) && !chunk.copies().unflushed; }

}  // namespace

absl::Status Records::CheckDurable(const OpenCall& event) const {
  const char* lacks = nullptr;
  if (event.job_name.empty()) {
    lacks = "a job with a name";
  } else if (event.time_to_live == Duration(0) && !event.chunk_size.IsZero()) {
    lacks = "a time to live";
  } else if (core_.options.ssd_capacity.IsZero()) {
    lacks = "an SSD pool, which this node has not";
  }
  if (lacks == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("durable_every is ", event.durable_every,
                                                 ": to be durable, a job needs ", lacks));
}

void Records::SetDurable(Job& job, uint32_t every) {
  job.snapshots.every = every;
  core_.MarkDirty(job);
}

void Records::AnswerCommit(Job& job, const CommitCall& event) {
  JobSnapshots& snapshots = job.snapshots;
  const uint32_t rank = job.keeps_ranks() ? core_.sessions.Find(event.session)->rank : 0;
  const bool is_due = job.is_durable() && event.step % snapshots.every == 0;
  if (!is_due || snapshots.SavedStep(rank) >= event.step) return core_.Answer(event.call);
  EndWaitForSnapshot(job, event.session, absl::AbortedError("the session has called again"));
  snapshots.commits.push_back(
      {event.call, event.session, rank, event.step, core_.now + core_.options.limits.max_wait});
  if (!snapshots.saving.has_value()) BeginSaving(job);
  // While the drive refuses all writes, the next try is the answer.
  Instant& next_try = job.failed_writes.next_try;
  next_try = std::min<Instant>(next_try, core_.now + std::chrono::seconds(1));
}

void Records::SaveAgain(Job& job) {
  const JobSnapshots& snapshots = job.snapshots;
  if (!snapshots.uncertain.has_value() || snapshots.saving.has_value()) return;
  if (core_.now >= snapshots.next_try) BeginSaving(job);
}

void Records::SaveLastSteps(Job& job) {
  if (!job.is_durable() || job.snapshots.saving.has_value()) return;
  if (core_.now < job.snapshots.next_try) return;
  if (job.committed_step > 0 && job.snapshots.saved_steps != job.CommittedSteps()) BeginSaving(job);
}

void Records::BeginSaving(Job& job) {
  JobSnapshots& snapshots = job.snapshots;
  snapshots.saving = std::exchange(snapshots.uncertain, absl::nullopt);
  if (snapshots.saving.has_value()) return core_.Emit(SaveSnapshot{snapshots.saving->snapshot});
  snapshots.saving.emplace();
  SaveWhenWritten(job);
}

// Lists the chunks that have yet to be written, and saves the snapshot if there are none. A chunk
// that was written may have changed meanwhile, so that all of the job is examined again.
void Records::SaveWhenWritten(Job& job) {
  JobSnapshots::Saving& saving = *job.snapshots.saving;
  if (saving.is_started || !saving.unwritten.empty()) return;
  for (const ChunkIndex index : job.members.chunks()) {
    const Chunk& chunk = core_.chunks[index];
    if (IsOnSsd(chunk)) continue;
    if (!IsRecorded(index) || !BelongsInSnapshot(chunk)) continue;
    saving.unwritten.insert(index);
    core_.ScheduleChunk(index);
  }
  if (!saving.unwritten.empty()) return;
  saving.is_started = true;
  saving.steps = job.CommittedSteps();
  const auto snapshot = std::make_shared<Snapshot>(Snapshot{RecordOf(job), {}});
  snapshot->job.regions.clear();
  for (const ChunkIndex index : job.members.chunks()) {
    if (!IsRecorded(index)) continue;
    ChunkRecord record = RecordOf(index);
    record.host.reset();
    if (BelongsInSnapshot(core_.chunks[index])) {
      saving.slots.push_back(core_.chunks[index].slot(Tier::kSsd).number());
    } else {
      record.torn = record.torn || core_.chunks[index].has_content();
      record.ssd->valid = false;
      record.ssd->sums.clear();
    }
    snapshot->chunks.push_back(std::move(record));
  }
  for (const SlotNumber slot : saving.slots) job.share(Tier::kSsd).Quarantine(slot);
  saving.snapshot = snapshot;
  core_.Emit(SaveSnapshot{snapshot});
}

// A chunk that is read takes room from others until it is written. False: its turn comes when
// another one leaves `reading`, which is full as long as a chunk is in `unread`.
bool Records::MayRead(ChunkIndex index) {
  JobSnapshots::Saving& saving = *core_.chunks[index].job->snapshots.saving;
  if (saving.reading.count(index) > 0) return true;
  const bool may_read = saving.reading.size() < kMostReads;
  (may_read ? saving.reading : saving.unread).insert(index);
  return may_read;
}

void Records::WriteForSnapshot(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  const absl::optional<JobSnapshots::Saving>& saving = chunk.job->snapshots.saving;
  if (!saving.has_value()) return;
  if (chunk.copies().flight || saving->unwritten.count(index) == 0) return;
  if (IsOnSsd(chunk) || !BelongsInSnapshot(chunk)) return LeaveSnapshot(*chunk.job, index);
  if (chunk.retry_after_tick) return;  // RetryWrites() lists the chunk again.
  if (chunk.valid_at(Tier::kHost)) {
    if (residency_.LeaveSnapshotSlot(index) && residency_.BeginWrite(index))
      residency_.Start(index, Tier::kHost, Tier::kSsd);
    return;
  }
  const Tier from = chunk.valid_at(Tier::kDevice) ? Tier::kDevice : Tier::kSsd;
  if (from == Tier::kSsd && !MayRead(index)) return;
  if (residency_.TakeSlot(index, Tier::kHost)) residency_.Start(index, from, Tier::kHost);
}

// The snapshot that is being saved, if there is one, waits for the chunk no more.
void Records::LeaveSnapshot(Job& job, ChunkIndex index) {
  if (!job.snapshots.saving.has_value()) return;
  JobSnapshots::Saving& saving = *job.snapshots.saving;
  if (saving.unwritten.erase(index) == 0) return;
  saving.unread.erase(index);
  saving.reading.erase(index);
  if (saving.reading.size() < kMostReads && !saving.unread.empty()) {
    const ChunkIndex next = *saving.unread.begin();
    saving.unread.erase(next);
    saving.reading.insert(next);
    core_.ScheduleChunk(next);
  }
  SaveWhenWritten(job);
}

void Records::On(const SnapshotSaved& event) {
  Job* const found = core_.FindJob(event.job);
  if (found == nullptr) return;
  Job& job = *found;
  JobSnapshots& snapshots = job.snapshots;
  if (!snapshots.saving.has_value()) return;  // The job ends.
  JobSnapshots::Saving saving = *std::exchange(snapshots.saving, absl::nullopt);
  if (event.status.ok()) {
    snapshots.saved_steps = std::move(saving.steps);
    EndQuarantines(job, snapshots.slots);
    snapshots.slots = std::move(saving.slots);
  } else {
    job.last_error = event.status;
    snapshots.next_try = core_.now + kPauseAfterFailure;
    saving.may_be_there |= absl::IsUnknown(event.status);
    if (saving.may_be_there) {
      snapshots.uncertain = std::move(saving);
    } else {
      EndQuarantines(job, saving.slots);
    }
    DistrustStores(job);
  }
  core_.HomesFreed(job);
  if (!event.status.ok()) RefuseCommits(job, event.status);
  for (JobSnapshots::AwaitingCommit& commit : std::exchange(snapshots.commits, {})) {
    if (commit.step <= snapshots.SavedStep(commit.rank)) {
      core_.Answer(commit.call);
    } else {
      snapshots.commits.push_back(std::move(commit));
    }
  }
  if (!snapshots.commits.empty()) return BeginSaving(job);
  if (event.status.ok() && job.state() == JobState::kLingering) SaveLastSteps(job);
}

// Bytes that were not flushed may be gone although the drive takes the next flush: they are written
// again, from what a read returns where there is no other copy. Slots of snapshots were flushed.
void Records::DistrustStores(Job& job) {
  const std::vector<SlotNumber> named = job.snapshots.NamedSlots();
  const std::set<SlotNumber> flushed(named.begin(), named.end());
  for (const ChunkIndex index : job.members.chunks()) {
    const Chunk& chunk = core_.chunks[index];
    if (!chunk.live() || !chunk.slot(Tier::kSsd)) continue;
    if (flushed.count(chunk.slot(Tier::kSsd).number()) == 0) residency_.DistrustSsd(index);
  }
}

// The commits that wait for a snapshot get the reason why there is none; its writes are tried on.
void Records::RefuseCommits(Job& job, const absl::Status& why) {
  for (const JobSnapshots::AwaitingCommit& commit : std::exchange(job.snapshots.commits, {})) {
    core_.Refuse(commit.call, absl::Status(why.code(), NotDurable(commit.step, why)));
  }
}

std::string Records::NotDurable(uint64_t step, const absl::Status& why) {
  return absl::StrCat("step ", step, " is committed, but not on stable storage: ", why.message());
}

void Records::EndQuarantines(Job& job, const std::vector<SlotNumber>& slots) {
  for (const SlotNumber slot : slots) job.share(Tier::kSsd).EndQuarantine(slot);
}

void Records::EndWaitForSnapshot(Job& job, SessionId session, const absl::Status& why) {
  std::vector<JobSnapshots::AwaitingCommit>& commits = job.snapshots.commits;
  const auto found = std::find_if(commits.begin(), commits.end(), [session](const auto& commit) {
    return commit.session == session;
  });
  if (found == commits.end()) return;
  core_.Refuse(found->call, why);
  commits.erase(found);
}

void Records::ExpireWaitForSnapshot(Job& job) {
  std::vector<JobSnapshots::AwaitingCommit>& commits = job.snapshots.commits;
  for (size_t i = 0; i < commits.size();) {
    const JobSnapshots::AwaitingCommit commit = commits[i];
    if (core_.now < commit.deadline) {
      ++i;
      continue;
    }
    absl::Status why = AwaitsBudget(absl::StrCat("the durable step ", commit.step));
    if (core_.writes.WaitingOf(job.id) == 0) {
      ++core_.counters.deadlines_exceeded;
      const absl::Status late = absl::DeadlineExceededError(
          absl::StrCat("the SSD was too slow; ", job.last_error.message()));
      why = absl::Status(late.code(), NotDurable(commit.step, late));
    }
    EndWaitForSnapshot(job, commit.session, why);
  }
}

void Records::EndSnapshots(Job& job) {
  if (!job.is_durable()) return;
  EndQuarantines(job, job.snapshots.NamedSlots());
  job.snapshots = {};
  DropSnapshot drop{job.id, {}};
  for (const uint32_t store : job.share(Tier::kSsd).segments()) drop.stores.emplace_back(store);
  core_.Emit(std::move(drop));
}

// The job was restored, from the snapshot or from records, which are newer: what the snapshot names
// stays where it is until the next one.
void Records::AdoptSnapshot(Job& job, const Snapshot& snapshot) {
  Share& ssd = job.share(Tier::kSsd);
  if (!ssd.exists()) return;
  job.snapshots.every = snapshot.job.durable_every;
  std::vector<uint64_t>& saved = job.snapshots.saved_steps;
  for (const RankRecord& rank : snapshot.job.ranks) saved.push_back(rank.committed_step);
  if (saved.empty()) saved = {snapshot.job.committed_step};
  for (const ChunkRecord& chunk : snapshot.chunks) {
    if (!chunk.ssd.has_value() || !chunk.ssd->valid) continue;
    if (chunk.ssd->slot >= ssd.slots().numbers()) continue;
    job.snapshots.slots.emplace_back(chunk.ssd->slot);
  }
  // By the records, which are newer, some of them may be free.
  ssd.QuarantineAll(job.snapshots.slots);
}

// A durable job without a record that could be restored. Its files stay, whatever happens here.
absl::Status Records::RestoreFrom(const Snapshot& snapshot) {
  const JobRecord& record = snapshot.job;
  std::vector<const ChunkRecord*> chunks;
  absl::Status status;
  for (const ChunkRecord& chunk : snapshot.chunks) {
    if (core_.chunks[IndexOf(chunk.chunk)].job != nullptr) {
      status = absl::FailedPreconditionError(absl::StrCat(
          "another job has chunk ", chunk.chunk.value(), "; end that job and restart memtided"));
    }
    chunks.push_back(&chunk);
  }
  if (status.ok()) status = RestoreJob(record, chunks);
  if (!status.ok()) {
    for (const StoreId store : record.stores) core_.Emit(DropStore{store, record.job});
    return status;
  }
  Job& job = *core_.jobs.at(record.job);
  AdoptSnapshot(job, snapshot);
  job.persistent = core_.options.persistent_jobs;
  core_.MarkDirty(job);
  for (const ChunkRecord* chunk : chunks) core_.MarkDirty(IndexOf(chunk->chunk));
  return absl::OkStatus();
}

void Records::On(const ChunkFreed& signal) {
  if (Job* const job = core_.FindJob(signal.job)) LeaveSnapshot(*job, IndexOf(signal.chunk));
}

// A chunk of it can be neither read nor written again. The last snapshot stays.
void Records::On(const SnapshotFails& signal) {
  Job* const job = core_.FindJob(signal.job);
  if (job == nullptr || !job->snapshots.saving.has_value()) return;
  job->snapshots.saving.reset();
  job->snapshots.next_try = core_.now + kPauseAfterFailure;
  RefuseCommits(*job, signal.why);
}

void Records::On(const WritesFail& signal) {
  if (Job* const job = core_.FindJob(signal.job)) RefuseCommits(*job, signal.why);
}

}  // namespace memtide

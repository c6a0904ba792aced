// Records: the changes of an event precede its other effects, so that memory is never used for new
// content while the last record still names the old one.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/records/records.h"

namespace memtide {

namespace {

// The copy of a chunk at one tier, as its record has it.
const absl::optional<ChunkRecord::Copy>& CopyAt(const ChunkRecord& record, Tier tier) {
  return tier == Tier::kHost ? record.host : record.ssd;
}

constexpr Tier kLastingTiers[] = {Tier::kHost, Tier::kSsd};

}  // namespace

void Records::EmitRecord(size_t before) {
  const RecordLog::Changes changes = core_.record_log.Take();
  Record record;
  for (const JobId id : changes.jobs) {
    const Job* const job = core_.FindJob(id);
    // A job whose first memory could not be made never opens, so that it leaves nothing to restore.
    if (job == nullptr || job->state() == JobState::kEnding || !job->making_status.ok()) {
      record.ended.push_back(id);
    } else {
      record.jobs.push_back(RecordOf(*job));
    }
  }
  // Chunks are recorded by their index, which the next chunk in the entry has, too: its record
  // replaces that of the freed chunk, unless the next one has none.
  for (const ChunkIndex index : changes.chunks) {
    if (IsRecorded(index) && core_.chunks[index].job->persistent) {
      record.chunks.push_back(RecordOf(index));
    } else {
      record.freed.push_back(index.value());
    }
  }
  // The other effects of the event are already there. The edges carry effects out in order, so that
  // the record must precede them.
  core_.effects->insert(core_.effects->begin() + static_cast<std::ptrdiff_t>(before),
                        std::move(record));
}

// A chunk that no id names yet is of no use to the next daemon.
bool Records::IsRecorded(ChunkIndex index) const {
  const Chunk& chunk = core_.chunks[index];
  return chunk.live() && !chunk.transient && !chunk.job->names.IsUnnamed(index);
}

JobRecord Records::RecordOf(const Job& job) const {
  JobRecord record;
  record.job = job.id;
  record.uid = job.uid;
  record.name = job.name;
  record.chunk_size = job.chunk_size;
  record.time_to_live = job.time_to_live;
  for (const Tier tier : kAllTiers) {
    const Share& share = job.share(tier);
    // Memory beyond the target exists only in a device share that shrinks.
    record.shares[static_cast<int>(tier)] =
        job.chunk_size * (share.is_elastic() ? share.limit() : share.target());
    record.guaranteed[static_cast<int>(tier)] = share.guaranteed();
  }
  record.device_memory = job.device_memory;
  record.device = job.share(Tier::kDevice).pool().device;
  const Share& host = job.share(Tier::kHost);
  const Share& ssd = job.share(Tier::kSsd);
  for (const uint32_t id : host.segments()) record.regions.push_back(RegionId(id));
  for (const uint32_t id : ssd.segments()) record.stores.push_back(StoreId(id));
  record.slots_per_region = host.slots_per_segment();
  record.slots_per_store = ssd.slots_per_segment();
  record.durable_every = job.snapshots.every;
  record.committed_step = job.committed_step;
  record.manifest = job.manifest.text();
  for (const KeptRank& rank : job.kept_ranks) {
    record.ranks.push_back({rank.committed_step, rank.manifest.text()});
  }
  return record;
}

ChunkRecord Records::RecordOf(ChunkIndex index) const {
  const Chunk& chunk = core_.chunks[index];
  ChunkRecord record;
  record.chunk = core_.IdOf(index);
  record.job = chunk.job->id;
  record.kind = chunk.kind;
  record.version = chunk.version;
  if (chunk.job->keeps_ranks()) record.names = core_.ids.RankNames(index);
  // `stepped`: a step part writes the slot, or will. `written`: a session may be changing the
  // bytes.
  bool stepped = chunk.blank, written = false;
  for (const Pin& pin : chunk.uses().pins) {
    if (!pin.granted() || pin.access != Access::kWrite) continue;
    (IsStep(pin.session) ? stepped : written) = true;
  }
  bool lasts = false;
  const auto copy = [&](Tier tier) -> absl::optional<ChunkRecord::Copy> {
    if (!chunk.slot(tier)) return absl::nullopt;
    const bool valid = chunk.valid_at(tier) && !stepped;
    lasts = lasts || valid;
    // At the home tier the slot is recorded without content, too, because the chunk keeps it.
    if (!valid && tier != chunk.job->home) return absl::nullopt;
    ChunkRecord::Copy recorded{chunk.slot(tier).number().value(), valid, {}};
    if (valid && tier == Tier::kSsd) {
      recorded.sums = chunk.copies().sums;
      recorded.unflushed = chunk.copies().unflushed;
    }
    return recorded;
  };
  record.host = copy(Tier::kHost);
  record.ssd = copy(Tier::kSsd);
  // The output of a step is no content of the job before the commit.
  record.torn = !stepped && (chunk.copies().torn || written || (chunk.has_content() && !lasts));
  return record;
}

void Records::On(const Restore& event) {
  MEMTIDE_CHECK(core_.jobs.empty() && core_.chunks.size() == 0) << "only before anything else";
  std::map<JobId, std::vector<const ChunkRecord*>> chunks;
  uint32_t entries = 0, generation = 0;
  const auto is_used = [&](ChunkId id) {
    entries = std::max(entries, IndexOf(id).value() + 1);
    generation = std::max(generation, GenerationOf(id));
  };
  for (const ChunkRecord& chunk : event.chunk_records) {
    chunks[chunk.job].push_back(&chunk);  // The journal has one record per index.
    is_used(chunk.chunk);
    for (const RankName& name : chunk.names) is_used(name.id);
  }
  for (const Snapshot& snapshot : event.snapshots) {
    for (const ChunkRecord& chunk : snapshot.chunks) {
      is_used(chunk.chunk);
      for (const RankName& name : chunk.names) is_used(name.id);
    }
  }
  // Ids of freed chunks must not name later ones. Their generations are not recorded, so all
  // entries begin with the largest that is.
  core_.chunks.Restore(entries, generation);
  core_.next_job = std::max(core_.next_job, event.last_job + 1);
  core_.next_segment = std::max(core_.next_segment, event.last_segment + 1);
  std::map<JobId, std::vector<StoreId>> saved_stores;
  for (const Snapshot& snapshot : event.snapshots) {
    saved_stores[snapshot.job.job] = snapshot.job.stores;
  }
  std::map<JobId, JobLost> given_up;
  for (const JobRecord& record : event.job_records) {
    KeepNumbersOf(record);
    const absl::Status status = RestoreJob(record, chunks[record.job]);
    if (status.ok()) continue;
    GiveUp(record, chunks[record.job], saved_stores[record.job]);
    given_up[record.job] = {record.job, record.name, record.committed_step, status};
  }
  for (const Snapshot& snapshot : event.snapshots) {
    const JobRecord& saved = snapshot.job;
    KeepNumbersOf(saved);
    if (Job* const restored = core_.FindJob(saved.job)) {
      AdoptSnapshot(*restored, snapshot);
      continue;
    }
    const absl::Status status = RestoreFrom(snapshot);
    const auto lost = given_up.find(saved.job);
    if (!status.ok()) {
      core_.Emit(JobLost{saved.job, saved.name, saved.committed_step, status, /*is_saved=*/true});
    } else if (lost != given_up.end()) {
      lost->second.goes_on_at = saved.committed_step;
    }
  }
  for (const auto& [id, lost] : given_up) core_.Emit(lost);
  core_.chunks.ReleaseEmpty();
}

// New jobs and segments must not have the numbers of restored ones.
void Records::KeepNumbersOf(const JobRecord& record) {
  core_.next_job = std::max(core_.next_job, record.job.value() + 1);
  for (const RegionId region : record.regions) {
    core_.next_segment = std::max(core_.next_segment, region.value() + 1);
  }
  for (const StoreId store : record.stores) {
    core_.next_segment = std::max(core_.next_segment, store.value() + 1);
  }
}

// The record of this event, which precedes the drops, takes the job out of the journal: a daemon
// that ends in between would otherwise restore a job without memory. `saved`: the stores that a
// snapshot of the job names, which is restored then.
void Records::GiveUp(const JobRecord& record, const std::vector<const ChunkRecord*>& chunks,
                     const std::vector<StoreId>& saved) {
  core_.record_log.Mark(record.job);
  for (const ChunkRecord* chunk : chunks) core_.record_log.Mark(IndexOf(chunk->chunk));
  for (const RegionId region : record.regions) core_.Emit(DropRegion{region, record.job});
  for (const StoreId store : record.stores) {
    const bool is_saved = std::find(saved.begin(), saved.end(), store) != saved.end();
    if (!is_saved) core_.Emit(DropStore{store, record.job});
  }
}

absl::Status Records::RestoreJob(const JobRecord& record,
                                 const std::vector<const ChunkRecord*>& chunks) {
  auto made = std::make_unique<Job>();
  Job& job = *made;
  job.id = record.job;
  job.uid = record.uid;
  job.groups = record.groups;
  job.made_at = core_.now;
  job.name = record.name;
  job.chunk_size = record.chunk_size;
  job.time_to_live = record.time_to_live;
  job.persistent = core_.options.persistent_jobs;
  job.snapshots.every = record.durable_every;
  job.committed_step = record.committed_step;
  job.manifest = Manifest(&core_.manifest_bytes, job.uid, record.manifest);
  job.ranks = static_cast<uint32_t>(record.ranks.size());
  MEMTIDE_RETURN_IF_ERROR(CheckNames(record, chunks));
  MEMTIDE_RETURN_IF_ERROR(RestoreMemory(job, record));
  std::array<std::vector<Slot>, kTiers> slots;
  for (const Tier tier : kLastingTiers) {
    MEMTIDE_ASSIGN_OR_RETURN(slots[static_cast<int>(tier)], TakeRecorded(job, tier, chunks));
    Share& share = job.share(tier);
    if (share.is_elastic()) MEMTIDE_RETURN_IF_ERROR(core_.ledger.RestoreTarget(share));
  }
  Share& device = job.share(Tier::kDevice);
  if (device.is_elastic()) MEMTIDE_RETURN_IF_ERROR(core_.ledger.RestoreTarget(device));
  // Everything that can fail is done. The engine has not pointed at the job so far, so that an
  // error needed no undo.
  std::array<size_t, kTiers> next{};
  for (const ChunkRecord* chunk : chunks) {
    NewChunk restored = RestoredFrom(*chunk);
    restored.home.tier = job.home;
    for (const Tier tier : kLastingTiers) {
      const int i = static_cast<int>(tier);
      if (CopyAt(*chunk, tier)) restored.copies.slot(tier) = std::move(slots[i][next[i]++]);
    }
    core_.ScheduleChunk(residency_.MakeChunk(job, std::move(restored)));
  }
  for (const RankRecord& rank : record.ranks) {
    job.kept_ranks.push_back({SessionId(kFirstKeptRank + job.kept_ranks.size()),
                              rank.committed_step,
                              Manifest(&core_.manifest_bytes, job.uid, rank.manifest)});
  }
  RestoreNames(job, chunks);
  // The sessions have ended with the last daemon. Their processes connect again and join the job by
  // its name.
  core_.ledger.SetState(*job.shares, JobState::kLingering);
  job.lingers_until = core_.now + job.time_to_live;
  for (const RegionId region : record.regions) core_.segments.emplace(region.value(), &job);
  for (size_t i = 0; i < record.stores.size(); ++i) {
    core_.segments.emplace(record.stores[i].value(), &job);
    const bool known = i < record.store_stripes.size();
    memory_.NoteStripes(record.stores[i], known ? record.store_stripes[i] : StripeCounts());
  }
  memory_.ExposeRegions(job);
  core_.jobs.emplace(job.id, std::move(made));
  return absl::OkStatus();
}

absl::Status Records::RestoreMemory(Job& job, const JobRecord& record) {
  const std::vector<MemoryKind>& kinds = core_.options.device_kinds;
  // The node may have another device than before. No device memory is restored, so any kind serves.
  const bool known = std::count(kinds.begin(), kinds.end(), record.device_memory) > 0;
  job.device_memory = known ? record.device_memory : kinds.front();
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<JobShares> shares,
                           core_.ledger.Restore(record, job.device_memory));
  memory_.TakeShares(job, std::move(shares));
  const auto back = [&](Tier tier, uint32_t segment) {
    core_.ledger.BackSegment(job.share(tier), segment);
    core_.MarkDirty(job);
  };
  for (const RegionId region : record.regions) back(Tier::kHost, region.value());
  for (const StoreId store : record.stores) back(Tier::kSsd, store.value());
  return absl::OkStatus();
}

// The recorded slots of the chunks at the tier, in the order of those that have one.
absl::StatusOr<std::vector<Slot>> Records::TakeRecorded(
    Job& job, Tier tier, const std::vector<const ChunkRecord*>& chunks) {
  std::vector<SlotNumber> numbers;
  for (const ChunkRecord* chunk : chunks) {
    const absl::optional<ChunkRecord::Copy>& copy = CopyAt(*chunk, tier);
    if (copy.has_value()) numbers.push_back(SlotNumber(copy->slot));
    const size_t sums = copy.has_value() ? copy->sums.size() : 0;
    if (sums != 0 && (tier != Tier::kSsd || sums != SumsOfSize(job.chunk_size))) {
      return absl::DataLossError(absl::StrCat("the record of chunk ", chunk->chunk.value(), " has ",
                                              sums, " sums of its content; it is to have ",
                                              SumsOfSize(job.chunk_size)));
    }
    if (copy.has_value() || tier != job.home) continue;
    return absl::DataLossError(
        absl::StrCat("the record of chunk ", chunk->chunk.value(), " names no home"));
  }
  if (numbers.empty()) return std::vector<Slot>();
  absl::optional<std::vector<Slot>> taken = job.share(tier).TakeNumbers(numbers);
  if (taken.has_value()) return *std::move(taken);
  return absl::DataLossError(absl::StrCat("the records of its chunks name slots of the ",
                                          TierName(tier),
                                          " tier twice, or slots that do not exist"));
}

// The chunk of the record, without its slots.
NewChunk Records::RestoredFrom(const ChunkRecord& record) {
  NewChunk chunk;
  chunk.recorded = record.chunk;
  chunk.kind = record.kind;
  chunk.version = record.version;
  chunk.copies.torn = record.torn;
  for (const Tier tier : kLastingTiers) {
    const absl::optional<ChunkRecord::Copy>& copy = CopyAt(record, tier);
    if (!copy.has_value() || !copy->valid) continue;
    chunk.copies.valid.Add(tier);
    if (tier == Tier::kSsd) {
      chunk.copies.sums = copy->sums;
      chunk.copies.unflushed = copy->unflushed;
    }
    if (tier == Tier::kHost) {
      chunk.copies.insertion_seq[static_cast<int>(tier)] = ++core_.insertions;
    }
  }
  return chunk;
}

}  // namespace memtide

// Records: what has changed is said before anything else that an event leads to, so that memory is
// never used for something new while the last record still names what it held before.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/state.h"

namespace memtide {

namespace {

// A chunk's slots at one tier, as its record has them.
const absl::optional<ChunkRecord::Copy>& CopyAt(const ChunkRecord& record, Tier tier) {
  return tier == Tier::kHost ? record.host : record.ssd;
}

constexpr Tier kLastingTiers[] = {Tier::kHost, Tier::kSsd};

}  // namespace

void EngineState::Touch(uint32_t place) {
  Chunk& chunk = chunks_[place];
  if (chunk.touched || !chunk.job->kept) return;
  chunk.touched = true;
  touched_.push_back(place);
}

void EngineState::Touch(const Job& job) {
  if (job.kept) touched_jobs_.insert(job.id);
}

void EngineState::EmitRecord(size_t before) {
  if (touched_.empty() && touched_jobs_.empty()) return;
  Record record;
  for (const JobId id : touched_jobs_) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end() || found->second->state == Job::State::kEnding) {
      record.ended.push_back(id);
    } else {
      record.jobs.push_back(RecordOf(*found->second));
    }
  }
  for (const uint32_t place : touched_) {
    chunks_[place].touched = false;
    if (chunks_[place].live()) {
      record.chunks.push_back(RecordOf(place));
    } else {
      record.freed.push_back(place);
    }
  }
  touched_.clear();
  touched_jobs_.clear();
  effects_->insert(effects_->begin() + static_cast<std::ptrdiff_t>(before), std::move(record));
}

JobRecord EngineState::RecordOf(const Job& job) const {
  JobRecord record;
  record.job = job.id;
  record.uid = job.uid;
  record.name = job.name;
  record.chunk_size = job.chunk_size;
  record.time_to_live = job.time_to_live;
  for (const Tier tier : kAllTiers) {
    const JobTier& part = job.tier(tier);
    // What exists is no more than the target, but for a device share that is shrinking.
    record.shares[static_cast<int>(tier)] =
        job.chunk_size * (part.is_elastic() ? part.most : part.target);
    record.claims[static_cast<int>(tier)] = part.claim;
  }
  record.device_memory = job.device_memory;
  for (const uint32_t part : job.tier(Tier::kHost).parts) record.regions.push_back(RegionId(part));
  for (const uint32_t part : job.tier(Tier::kSsd).parts) record.stores.push_back(StoreId(part));
  record.slots_per_region = job.tier(Tier::kHost).slots_per_part;
  record.slots_per_store = job.tier(Tier::kSsd).slots_per_part;
  record.published_step = job.published_step;
  record.note = job.note;
  return record;
}

ChunkRecord EngineState::RecordOf(uint32_t place) const {
  const Chunk& chunk = chunks_[place];
  ChunkRecord record;
  record.chunk = IdOf(place);
  record.job = chunk.job->id;
  record.kind = chunk.kind;
  record.version = chunk.version;
  bool stepped = chunk.blank, written = false;
  for (const Hold& hold : chunk.holds) {
    if (!hold.granted || hold.access != Access::kWrite) continue;
    (IsStep(hold.session) ? stepped : written) = true;
  }
  bool lasts = false;
  const auto copy = [&](Tier tier) -> absl::optional<ChunkRecord::Copy> {
    if (!chunk.slot(tier)) return absl::nullopt;
    const bool valid = chunk.valid_at(tier) && !stepped;
    lasts = lasts || valid;
    if (!valid && tier != chunk.job->home) return absl::nullopt;
    return ChunkRecord::Copy{chunk.slot(tier).number(), valid};
  };
  record.host = copy(Tier::kHost);
  record.ssd = copy(Tier::kSsd);
  // What a step writes is nobody's content yet.
  record.torn = !stepped && (chunk.torn || written || (chunk.valid != 0 && !lasts));
  return record;
}

void EngineState::On(const Restore& event) {
  MEMTIDE_CHECK(jobs_.empty() && chunks_.empty()) << "only before anything else";
  std::map<JobId, std::vector<const ChunkRecord*>> chunks;
  uint32_t places = 0, generation = 0;
  for (const ChunkRecord& chunk : event.chunk_records) {
    chunks[chunk.job].push_back(&chunk);  // One record a place: whoever keeps them sees to that.
    places = std::max(places, static_cast<uint32_t>(chunk.chunk.value()) + 1);
    generation = std::max(generation, static_cast<uint32_t>(chunk.chunk.value() >> 32));
  }
  chunks_.resize(places);
  // Ids of chunks that ended before name none of those to come, as far as the records tell.
  for (Chunk& chunk : chunks_) chunk.generation = generation;
  for (const JobRecord& record : event.job_records) {
    next_job_ = std::max(next_job_, record.job.value() + 1);
    for (const RegionId region : record.regions) {
      next_part_ = std::max(next_part_, region.value() + 1);
    }
    for (const StoreId store : record.stores) next_part_ = std::max(next_part_, store.value() + 1);
    const absl::Status status = RestoreJob(record, chunks[record.job]);
    if (!status.ok()) GiveUp(record, chunks[record.job], status);
  }
  for (uint32_t place = places; place > 0; --place) {
    if (chunks_[place - 1].job == nullptr) free_places_.push_back(place - 1);
  }
}

void EngineState::GiveUp(const JobRecord& record, const std::vector<const ChunkRecord*>& chunks,
                         const absl::Status& why) {
  Record ended;
  ended.ended = {record.job};
  for (const ChunkRecord* chunk : chunks) {
    ended.freed.push_back(static_cast<uint32_t>(chunk->chunk.value()));
  }
  Emit(std::move(ended));
  for (const RegionId region : record.regions) Emit(DropRegion{region});
  for (const StoreId store : record.stores) Emit(DropStore{store});
  Emit(JobLost{record.job, record.name, record.published_step, why});
}

absl::Status EngineState::RestoreJob(const JobRecord& record,
                                     const std::vector<const ChunkRecord*>& chunks) {
  auto made = std::make_unique<Job>();
  Job& job = *made;
  job.id = record.job;
  job.uid = record.uid;
  job.name = record.name;
  job.chunk_size = record.chunk_size;
  job.time_to_live = record.time_to_live;
  job.kept = true;
  job.published_step = record.published_step;
  job.note = record.note;
  MEMTIDE_RETURN_IF_ERROR(RestoreMemory(job, record));
  std::array<std::vector<Slot>, kTiers> slots;
  for (const Tier tier : kLastingTiers) {
    MEMTIDE_ASSIGN_OR_RETURN(slots[static_cast<int>(tier)], TakeRecorded(job, tier, chunks));
    if (job.tier(tier).is_elastic()) MEMTIDE_RETURN_IF_ERROR(RestoreElastic(job, tier));
  }
  std::array<size_t, kTiers> next{};
  for (const ChunkRecord* chunk : chunks) {
    const uint32_t place = static_cast<uint32_t>(chunk->chunk.value());
    RestoreChunk(job, *chunk);
    for (const Tier tier : kLastingTiers) {
      const int i = static_cast<int>(tier);
      if (CopyAt(*chunk, tier)) chunks_[place].slots[i] = std::move(slots[i][next[i]++]);
    }
    Rank(place);
    Ready(place);
  }
  job.chunks = static_cast<uint32_t>(chunks.size());
  live_chunks_ += job.chunks;
  job.state = Job::State::kLingering;
  job.lingers_until = now_ + job.time_to_live;
  for (const RegionId region : record.regions) parts_.emplace(region.value(), &job);
  for (const StoreId store : record.stores) parts_.emplace(store.value(), &job);
  jobs_.emplace(job.id, std::move(made));
  return absl::OkStatus();
}

absl::Status EngineState::RestoreMemory(Job& job, const JobRecord& record) {
  const std::vector<MemoryKind>& kinds = options_.device_kinds;
  const bool known = std::count(kinds.begin(), kinds.end(), record.device_memory) > 0;
  job.device_memory = known ? record.device_memory : kinds.front();
  for (const Tier tier : kAllTiers) {
    const Bytes share = record.shares[static_cast<int>(tier)];
    if (share.IsZero()) continue;
    JobTier& part = job.tier(tier);
    part.claim = record.claims[static_cast<int>(tier)];
    if (part.is_elastic()) {
      part.slots_per_part = tier == Tier::kHost ? record.slots_per_region : record.slots_per_store;
      part.most = static_cast<uint32_t>(share / job.chunk_size);
      if (part.slots_per_part == 0 || part.claim > part.most) {
        return absl::DataLossError("its record names no such share");
      }
      part.slots = std::make_unique<SlotPool>(part.most);
    } else {
      MEMTIDE_RETURN_IF_ERROR(LendTier(job, tier, share, false));
    }
    job.home = tier;
  }
  job.work = job.tier(Tier::kDevice).exists() ? Tier::kDevice : Tier::kHost;
  JobTier& host = job.tier(Tier::kHost);
  JobTier& ssd = job.tier(Tier::kSsd);
  if (record.slots_per_region != host.slots_per_part ||
      record.slots_per_store != ssd.slots_per_part) {
    return absl::FailedPreconditionError("its memory was cut by another version of memtided");
  }
  const auto most = [](const JobTier& tier) -> size_t {
    return tier.exists() ? (tier.most + tier.slots_per_part - 1) / tier.slots_per_part : 0;
  };
  if (record.regions.size() > most(host) || record.stores.size() > most(ssd)) {
    return absl::DataLossError("its record names more memory than its shares");
  }
  for (const RegionId region : record.regions) BackPart(job, Tier::kHost, region.value());
  for (const StoreId store : record.stores) BackPart(job, Tier::kSsd, store.value());
  return absl::OkStatus();
}

// The slots that the chunks have at the tier, in the order of those that have one.
absl::StatusOr<std::vector<Slot>> EngineState::TakeRecorded(
    Job& job, Tier tier, const std::vector<const ChunkRecord*>& chunks) {
  std::vector<uint32_t> numbers;
  for (const ChunkRecord* chunk : chunks) {
    const absl::optional<ChunkRecord::Copy>& copy = CopyAt(*chunk, tier);
    if (copy.has_value()) numbers.push_back(copy->slot);
    if (copy.has_value() || tier != job.home) continue;
    return absl::DataLossError(
        absl::StrCat("the record of chunk ", chunk->chunk.value(), " names no home"));
  }
  if (numbers.empty()) return std::vector<Slot>();
  absl::optional<std::vector<Slot>> taken;
  if (job.tier(tier).exists()) taken = job.tier(tier).slots->TakeNumbers(numbers);
  if (taken.has_value()) return *std::move(taken);
  return absl::DataLossError(absl::StrCat("the records of its chunks name slots of the ",
                                          TierName(tier), " tier twice, or such as it has not"));
}

// Of host memory, slots without content are the machine's again (take_up.cc). The share is what is
// used, or the few slots that any job has, and grows from there.
absl::Status EngineState::RestoreElastic(Job& job, Tier tier) {
  JobTier& part = job.tier(tier);
  if (options_.placement != Placement::kForesight) part.victims = Victims(1);
  while (tier == Tier::kHost && part.slots->free_slots() > 0) {
    part.slots->Gone(part.slots->Unback(part.slots->Take()));
  }
  part.target = std::max(part.made_slots(), std::min(part.claim, kMinSlots));
  part.slots->Resize(part.target);
  part.share = job.chunk_size * part.target;
  if (part.share <= Free(tier)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "it has ", FormatBytes(part.share), " of the ", TierName(tier), " pool, which has ",
      FormatBytes(Free(tier)), " free of ", FormatBytes(capacity_[static_cast<int>(tier)])));
}

void EngineState::RestoreChunk(Job& job, const ChunkRecord& record) {
  const uint32_t place = static_cast<uint32_t>(record.chunk.value());
  Chunk& chunk = chunks_[place];
  chunk.job = &job;
  chunk.generation = static_cast<uint32_t>(record.chunk.value() >> 32);
  chunk.kind = record.kind;
  chunk.version = record.version;
  chunk.torn = record.torn;
  chunk.member = static_cast<uint32_t>(job.members.size());
  job.members.push_back(place);
  ++job.kinds[static_cast<int>(record.kind)];
  for (const Tier tier : kLastingTiers) {
    const absl::optional<ChunkRecord::Copy>& copy = CopyAt(record, tier);
    if (!copy.has_value() || !copy->valid) continue;
    const int i = static_cast<int>(tier);
    chunk.valid |= static_cast<uint8_t>(1u << i);
    if (tier == Tier::kHost) chunk.arrived[i] = ++arrivals_;
  }
}

}  // namespace memtide

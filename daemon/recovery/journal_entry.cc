#include "daemon/recovery/journal_entry.h"

#include <algorithm>

#include "daemon/engine/interface/types.h"

namespace memtide {
namespace {

void Encode(const JobRecord& job, journal::Job* out) {
  out->set_id(job.job.value());
  out->set_uid(job.uid);
  out->set_name(job.name);
  out->set_chunk_bytes(job.chunk_size.count());
  out->set_time_to_live_ns(job.time_to_live.count());
  for (const Bytes share : job.shares) out->add_share_bytes(share.count());
  for (const uint32_t slots : job.guaranteed) out->add_guaranteed_slots(slots);
  out->set_device_memory(static_cast<uint32_t>(job.device_memory));
  out->set_device(job.device);
  for (const RegionId region : job.regions) out->add_regions(region.value());
  for (const StoreId store : job.stores) out->add_stores(store.value());
  for (const std::vector<uint32_t>& counts : job.store_stripes) {
    out->add_store_stripes()->mutable_per_cycle()->Add(counts.begin(), counts.end());
  }
  out->set_slots_per_region(job.slots_per_region);
  out->set_slots_per_store(job.slots_per_store);
  out->set_committed_step(job.committed_step);
  out->set_step_manifest(job.manifest);
  out->set_durable_every(job.durable_every);
  for (const RankRecord& rank : job.ranks) {
    journal::Rank* const added = out->add_ranks();
    added->set_committed_step(rank.committed_step);
    added->set_step_manifest(rank.manifest);
  }
}

JobRecord Decode(const journal::Job& job) {
  JobRecord out;
  out.job = JobId(job.id());
  out.uid = job.uid();
  out.name = job.name();
  out.chunk_size = Bytes(job.chunk_bytes());
  out.time_to_live = Duration(job.time_to_live_ns());
  // The journal may be damaged, so that no length in it is relied on.
  const int tiers = std::min(kTiers, job.share_bytes_size());
  for (int i = 0; i < tiers; ++i) out.shares[i] = Bytes(job.share_bytes(i));
  const int guaranteed = std::min(kTiers, job.guaranteed_slots_size());
  for (int i = 0; i < guaranteed; ++i) out.guaranteed[i] = job.guaranteed_slots(i);
  out.device_memory = static_cast<MemoryKind>(job.device_memory());
  out.device = job.device();
  for (const uint32_t region : job.regions()) out.regions.push_back(RegionId(region));
  for (const uint32_t store : job.stores()) out.stores.push_back(StoreId(store));
  for (const journal::Stripes& stripes : job.store_stripes()) {
    out.store_stripes.emplace_back(stripes.per_cycle().begin(), stripes.per_cycle().end());
  }
  out.slots_per_region = job.slots_per_region();
  out.slots_per_store = job.slots_per_store();
  out.committed_step = job.committed_step();
  out.manifest = job.step_manifest();
  out.durable_every = job.durable_every();
  for (const journal::Rank& rank : job.ranks()) {
    out.ranks.push_back({rank.committed_step(), rank.step_manifest()});
  }
  return out;
}

void Encode(const ChunkRecord::Copy& copy, journal::Chunk::Copy* out) {
  out->set_slot(copy.slot);
  out->set_valid(copy.valid);
  out->mutable_sums()->Add(copy.sums.begin(), copy.sums.end());
  out->set_unflushed(copy.unflushed);
}

void Encode(const ChunkRecord& chunk, journal::Chunk* out) {
  out->set_id(chunk.chunk.value());
  out->set_job(chunk.job.value());
  out->set_kind(static_cast<uint32_t>(chunk.kind));
  out->set_version(chunk.version.value());
  if (chunk.host.has_value()) Encode(*chunk.host, out->mutable_host());
  if (chunk.ssd.has_value()) Encode(*chunk.ssd, out->mutable_ssd());
  out->set_torn(chunk.torn);
  for (const RankName& name : chunk.names) {
    journal::Chunk::Name* const added = out->add_names();
    added->set_id(name.id.value());
    added->set_rank(name.rank);
  }
}

ChunkRecord::Copy Decode(const journal::Chunk::Copy& copy) {
  return {copy.slot(), copy.valid(), {copy.sums().begin(), copy.sums().end()}, copy.unflushed()};
}

ChunkRecord Decode(const journal::Chunk& chunk) {
  ChunkRecord out;
  out.chunk = ChunkId(chunk.id());
  out.job = JobId(chunk.job());
  out.kind = static_cast<ChunkKind>(chunk.kind());
  out.version = Version(chunk.version());
  if (chunk.has_host()) out.host = Decode(chunk.host());
  if (chunk.has_ssd()) out.ssd = Decode(chunk.ssd());
  out.torn = chunk.torn();
  for (const journal::Chunk::Name& name : chunk.names()) {
    out.names.push_back({ChunkId(name.id()), name.rank()});
  }
  return out;
}

// More entries than a chunk table comes to have: it has one for each number up to the largest.
constexpr uint64_t kEntries = 4 * uint64_t{Limits().chunks};

bool IsPossibleId(uint64_t id) { return (id & UINT32_MAX) < kEntries; }

// Whether a daemon can have made it: the number that follows each of its numbers exists.
bool IsPossible(const journal::Job& job) {
  if (job.device_memory() > static_cast<uint32_t>(MemoryKind::kCudaIpc)) return false;
  if (job.device() >= kMostDevices || job.chunk_bytes() == 0 || job.id() == UINT64_MAX)
    return false;
  const auto has_last = [](const auto& segments) {
    return std::count(segments.begin(), segments.end(), UINT32_MAX) > 0;
  };
  return !has_last(job.regions()) && !has_last(job.stores());
}

bool IsPossible(const journal::Chunk& chunk) {
  if (chunk.kind() >= kChunkKinds || !IsPossibleId(chunk.id())) return false;
  return std::all_of(chunk.names().begin(), chunk.names().end(),
                     [](const auto& name) { return IsPossibleId(name.id()); });
}

}  // namespace

journal::Entry EncodeEntry(const Record& record) {
  journal::Entry entry;
  for (const JobRecord& job : record.jobs) Encode(job, entry.add_jobs());
  for (const JobId job : record.ended) entry.add_ended(job.value());
  for (const ChunkRecord& chunk : record.chunks) Encode(chunk, entry.add_chunks());
  for (const uint32_t place : record.freed) entry.add_freed(place);
  return entry;
}

bool DecodeEntry(const journal::Entry& entry, Record* record) {
  for (const journal::Job& job : entry.jobs()) {
    if (!IsPossible(job)) return false;
    record->jobs.push_back(Decode(job));
  }
  for (const uint64_t job : entry.ended()) record->ended.push_back(JobId(job));
  for (const journal::Chunk& chunk : entry.chunks()) {
    if (!IsPossible(chunk)) return false;
    record->chunks.push_back(Decode(chunk));
  }
  record->freed.assign(entry.freed().begin(), entry.freed().end());
  return true;
}

}  // namespace memtide

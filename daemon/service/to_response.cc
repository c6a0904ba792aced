#include "absl/strings/str_cat.h"
#include "daemon/service/convert.h"
#include "daemon/settings/quota_text.h"

namespace memtide {
v1::Tier ToProto(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return v1::TIER_DEVICE;
    case Tier::kHost:
      return v1::TIER_HOST;
    case Tier::kSsd:
      return v1::TIER_SSD;
  }
  return v1::TIER_UNSPECIFIED;
}

namespace {

void ToProto(Duration duration, google::protobuf::Duration* proto) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  proto->set_seconds(seconds.count());
  proto->set_nanos(static_cast<int32_t>((duration - seconds).count()));
}

// No copies: the chunk was never written, and reads as zeros.
void ToProto(const ChunksAhead& ahead, v1::ChunksAhead* proto) {
  for (const ChunkId chunk : ahead.reads) proto->add_reads(chunk.value());
  for (const ChunkId chunk : ahead.writes) proto->add_writes(chunk.value());
  proto->set_more_come(ahead.more_come);
}

void ToProto(const ChunkInfo& chunk, v1::ChunkInfo* proto) {
  proto->set_chunk_id(chunk.chunk.value());
  proto->set_job_id(chunk.job.value());
  proto->set_kind(ToProto(chunk.kind));
  proto->set_version(chunk.version.value());
  if (chunk.on_device) proto->add_copies(v1::TIER_DEVICE);
  if (chunk.on_host) proto->add_copies(v1::TIER_HOST);
  if (chunk.on_ssd) proto->add_copies(v1::TIER_SSD);
  proto->set_moving(chunk.moving);
  proto->set_leases(chunk.leases);
  proto->set_torn(chunk.torn);
  for (const RankName& name : chunk.names) {
    v1::ChunkInfo::Name* const added = proto->add_names();
    added->set_chunk_id(name.id.value());
    added->set_rank(name.rank);
  }
}

void ToProto(const KindUsage& usage, v1::KindUsage* proto) {
  proto->set_kind(ToProto(usage.kind));
  proto->set_allocated_bytes(usage.allocated.count());
  proto->set_device_bytes(usage.device.count());
  proto->set_host_bytes(usage.host.count());
  proto->set_ssd_bytes(usage.ssd.count());
  proto->set_shared_bytes(usage.shared.count());
}

void ToProto(const PoolUsage& pool, v1::Pool* proto) {
  proto->set_tier(ToProto(pool.pool.tier));
  proto->set_device_number(pool.pool.device);
  proto->set_capacity_bytes(pool.capacity.count());
  proto->set_used_bytes(pool.used.count());
  proto->set_reserved_bytes((pool.reserved - pool.quarantined).count());
  proto->set_quarantined_bytes(pool.quarantined.count());
  proto->set_ballooned_bytes(pool.balloon.count());
  proto->set_scrubbing_bytes(pool.scrubbing.count());
  proto->set_free_bytes(pool.free.count());
  proto->set_obtainable_bytes(pool.obtainable.count());
}

void ToProto(const Counters& counters, v1::NodeCounters* proto) {
  proto->set_fetches(counters.fetches);
  proto->set_fetch_hits(counters.fetch_hits);
  proto->set_evictions(counters.evictions);
  proto->set_clean_evictions(counters.dropped_clean);
  proto->set_revokes(counters.revokes);
  proto->set_transfers_failed(counters.transfers_failed);
  proto->set_calls_refused(counters.calls_refused);
  proto->set_sessions_lost(counters.sessions_lost);
  proto->set_deadlines_exceeded(counters.deadlines_exceeded);
  proto->set_host_to_device_bytes(counters.host_to_device.count());
  proto->set_device_to_host_bytes(counters.device_to_host.count());
  proto->set_ssd_read_bytes(counters.ssd_read.count());
  proto->set_ssd_written_bytes(counters.ssd_written.count());
  proto->set_zeroed_bytes(counters.zeroed.count());
  proto->set_ballooned_bytes(counters.balloon.count());
  proto->set_device_reclaimed_bytes(counters.device_reclaimed.count());
  proto->set_host_reclaimed_bytes(counters.host_reclaimed.count());
  proto->set_ssd_reclaimed_bytes(counters.ssd_reclaimed.count());
  ToProto(counters.stalled_on_ssd, proto->mutable_stalled_on_ssd());
  ToProto(counters.stalled_on_copy, proto->mutable_stalled_on_copy());
  ToProto(counters.stalled_on_room, proto->mutable_stalled_on_room());
  ToProto(counters.stalled_on_budget, proto->mutable_stalled_on_budget());
  proto->set_events(counters.events);
  proto->set_iterations(counters.iterations);
  proto->set_iteration_mispredictions(counters.iteration_mispredictions);
  proto->set_step_parts(counters.step_parts);
  proto->set_steps_committed(counters.steps_committed);
  proto->set_non_finite_gradients(counters.non_finite_gradients);
  proto->set_parts_shared(counters.parts_shared);
  proto->set_contents_shared(counters.contents_shared);
  proto->set_digests_collided(counters.digests_collided);
  proto->set_ssd_verified_bytes(counters.verified.count());
  proto->set_ssd_scrubbed_bytes(counters.scrubbed.count());
  proto->set_ssd_wrong_bytes(counters.wrong_bytes);
}

void ToProto(const SessionInfo& session, v1::Session* proto) {
  proto->set_session_id(session.session.value());
  proto->set_uid(session.uid);
  proto->set_pid(session.pid);
  // Jobs are numbered from 1, so an absent id means no job.
  if (session.open) proto->set_job_id(session.job.value());
  proto->set_job_name(session.job_name);
  proto->set_rank(session.rank);
  proto->set_ranks(session.ranks);
  proto->set_leases(session.leases);
  proto->set_chunk_size_bytes(session.chunk_size.count());
  proto->set_device_number(session.device);
  proto->set_device_share_bytes(session.device_share.count());
  proto->set_host_share_bytes(session.host_share.count());
  proto->set_host_ballooned_bytes(session.host_balloon.count());
  for (const KindUsage& usage : session.kinds) ToProto(usage, proto->add_kinds());
  if (!session.rank_use) return;
  v1::RankUse* const use = proto->mutable_rank_use();
  use->set_named_bytes(session.rank_use->named.count());
  use->set_shared_bytes(session.rank_use->shared.count());
}

v1::JobState ToProto(JobState state) {
  switch (state) {
    case JobState::kMaking:
      return v1::JOB_STATE_MAKING;
    case JobState::kRunning:
      return v1::JOB_STATE_RUNNING;
    case JobState::kLingering:
      return v1::JOB_STATE_LINGERING;
    case JobState::kEnding:
      return v1::JOB_STATE_ENDING;
  }
  return v1::JOB_STATE_UNSPECIFIED;
}

void ToProto(const JobInfo& job, v1::Job* proto) {
  proto->set_job_id(job.job.value());
  proto->set_uid(job.uid);
  proto->set_name(job.name);
  proto->set_state(ToProto(job.state));
  proto->set_session_count(job.sessions);
  proto->set_chunk_count(job.chunks);
  proto->set_device_bytes(job.bytes[static_cast<int>(Tier::kDevice)].count());
  proto->set_host_bytes(job.bytes[static_cast<int>(Tier::kHost)].count());
  proto->set_ssd_bytes(job.bytes[static_cast<int>(Tier::kSsd)].count());
  proto->set_device_number(job.device);
  ToProto(job.age, proto->mutable_age());
  ToProto(job.lingers_for, proto->mutable_lingers_for());
  proto->set_durable_every(job.durable_every);
  proto->set_durable_step(job.durable_step);
}

void ToProto(const QuotaUse& use, v1::QuotaUse* proto) {
  *proto->mutable_quota() = ToProto(use.quota);
  if (use.quota.kind == Quota::Kind::kDefault && use.uid) {
    proto->set_is_default(true);
    proto->mutable_quota()->set_subject(absl::StrCat("user:", *use.uid));
  }
  const Limited& most = use.quota.most;
  const auto of = [&use](Tier tier) { return use.bytes[static_cast<int>(tier)]; };
  const auto compare = [proto](bool exceeds, const char* field) {
    if (exceeds) proto->add_exceeded(field);
  };
  const auto compare_tier = [&](Tier tier, const char* field) {
    const absl::optional<Bytes>& limit = most.bytes[static_cast<int>(tier)];
    compare(limit && of(tier) > *limit, field);
  };
  proto->set_device_bytes(of(Tier::kDevice).count());
  proto->set_host_bytes(of(Tier::kHost).count());
  proto->set_ssd_bytes(of(Tier::kSsd).count());
  proto->set_jobs(use.jobs);
  proto->set_lingering_bytes(use.lingering.count());
  proto->set_ssd_written_per_day_bytes(use.written_last_day.count());
  compare_tier(Tier::kDevice, "device_bytes");
  compare_tier(Tier::kHost, "host_bytes");
  compare_tier(Tier::kSsd, "ssd_bytes");
  compare(most.jobs && use.jobs > *most.jobs, "jobs");
  compare(most.lingering && use.lingering > *most.lingering, "lingering_bytes");
  compare(most.written_per_day && use.written_last_day > *most.written_per_day,
          "ssd_written_per_day_bytes");
}

}  // namespace

void ToProto(const HostMemoryUse& use, v1::HostMemory* proto) {
  proto->set_pinned_bytes(use.pinned.count());
  proto->set_unpinned_bytes(use.unpinned.count());
  proto->set_staging_bytes(use.staging.count());
  proto->set_coherent(use.coherent);
  if (use.numa_node) proto->set_numa_node(*use.numa_node);
  for (const auto& [device, node] : use.numa_node_by_device) {
    (*proto->mutable_numa_node_by_device())[device] = node;
  }
}

void ToProto(const Limits& limits, v1::Limits* proto) {
  proto->set_chunks_per_call(limits.chunks_per_call);
  proto->set_moments_per_call(limits.moments_per_call);
  proto->set_uses_per_call(limits.uses_per_call);
  proto->set_iteration_ends_per_call(limits.iteration_ends_per_call);
  proto->set_step_manifest_bytes(limits.manifest_bytes);
  proto->set_chunks_per_node(limits.chunks);
  ToProto(limits.max_wait, proto->mutable_max_wait());
  // kMinSlots is a constant of the engine. It is sent so that clients need no copy of it.
  proto->set_min_slots(kMinSlots);
}

void ToResponse(const OpenReply& reply, v1::OpenResponse* response) {
  response->set_session_id(reply.session.value());
  response->set_job_id(reply.job.value());
  response->set_chunk_size_bytes(reply.chunk_size.count());
  response->set_device_slots(reply.device_slots);
  response->set_host_slots(reply.host_slots);
  response->set_ssd_slots(reply.ssd_slots);
  response->set_max_chunks(reply.max_chunks);
  response->set_lease_budget(reply.lease_budget);
  for (const RegionId region : reply.regions) response->add_region_ids(region.value());
  ToProto(reply.session_lease, response->mutable_session_lease());
  response->set_device_memory(ToProto(reply.device_memory));
  response->set_device_number(reply.device);
  response->set_committed_step(reply.committed_step);
  response->set_step_manifest(reply.manifest);
}

void ToResponse(const ResizeReply& reply, v1::ResizeResponse* response) {
  response->set_device_slots(reply.device_slots);
  response->set_lease_budget(reply.lease_budget);
}

void ToResponse(const PartReply& reply, v1::StartPartResponse* response) {
  response->mutable_places()->Reserve(static_cast<int>(reply.places.size()));
  for (const MemoryPlace& place : reply.places) {
    v1::HostPlace* const proto = response->add_places();
    proto->set_region_id(place.region.value());
    proto->set_offset_bytes(place.offset.count());
  }
  response->set_made(reply.made);
  for (const uint32_t number : reply.unknown_reads) response->add_unknown_reads(number);
  if (!reply.difference) return;
  v1::PartDifference* const difference = response->mutable_difference();
  difference->set_rank(reply.difference->rank);
  difference->set_work(reply.difference->work);
  for (const uint32_t number : reply.difference->reads) difference->add_reads(number);
}

void ToResponse(const OfferReply& reply, v1::OfferResponse* response) {
  for (const uint32_t number : reply.shared) response->add_shared(number);
  for (const uint32_t number : reply.leased) response->add_leased(number);
}

void ToResponse(const AllocateReply& reply, v1::AllocateResponse* response) {
  response->mutable_chunk_ids()->Reserve(static_cast<int>(reply.chunks.size()));
  for (const ChunkId chunk : reply.chunks) response->add_chunk_ids(chunk.value());
}

void ToResponse(const AllocateReply& reply, v1::DuplicateResponse* response) {
  response->mutable_chunk_ids()->Reserve(static_cast<int>(reply.chunks.size()));
  for (const ChunkId chunk : reply.chunks) response->add_chunk_ids(chunk.value());
}

void ToResponse(const FetchReply& reply, v1::FetchResponse* response) {
  response->mutable_leases()->Reserve(static_cast<int>(reply.leases.size()));
  for (const Lease& lease : reply.leases) {
    v1::Lease* const proto = response->add_leases();
    proto->set_chunk_id(lease.chunk.value());
    proto->set_tier(ToProto(lease.tier));
    proto->set_region_id(lease.place.region.value());
    proto->set_offset_bytes(lease.place.offset.count());
    proto->set_version(lease.version.value());
  }
  for (const ChunkId chunk : reply.eviction_hints) response->add_eviction_hints(chunk.value());
  response->set_leaving(reply.leaving);
  ToProto(reply.ahead, response->mutable_ahead());
}

void ToResponse(const ReportReply& reply, v1::ReportResponse* response) {
  ToProto(reply.ahead, response->mutable_ahead());
}

void ToResponse(const DescribeReply& reply, v1::DescribeResponse* response) {
  for (const ChunkInfo& chunk : reply.chunks) ToProto(chunk, response->add_chunks());
}

void ToResponse(const EndJobReply& reply, v1::EndJobResponse* response) {
  ToProto(reply.job, response->mutable_job());
}

void ToResponse(const InspectReply& reply, v1::InspectNodeResponse* response) {
  for (const PoolUsage& pool : reply.pools) ToProto(pool, response->add_pools());
  for (const KindUsage& usage : reply.kinds) ToProto(usage, response->add_kinds());
  ToProto(reply.counters, response->mutable_counters());
  for (const SessionInfo& session : reply.sessions) ToProto(session, response->add_sessions());
  for (const ChunkInfo& chunk : reply.chunks) ToProto(chunk, response->add_chunks());
  response->set_session_count(reply.session_count);
  response->set_chunk_count(reply.chunk_count);
  response->set_waiting_calls(reply.waiting_calls);
  response->set_transfers_in_flight(reply.transfers_in_flight);
  response->set_draining(reply.draining);
  response->set_refuses_sessions(reply.refuses_sessions);
  for (const JobInfo& job : reply.jobs) ToProto(job, response->add_jobs());
  for (const QuotaUse& use : reply.quotas) ToProto(use, response->add_quotas());
  response->set_next_chunk(reply.next_chunk);
  for (const UserWrites& user : reply.users) {
    v1::UserSsdWrites* const proto = response->add_ssd_users();
    proto->set_uid(user.uid);
    proto->set_written_last_day_bytes(user.last_day.count());
    proto->set_written_per_day_bytes(user.per_day.count());
    proto->set_waiting_chunks(user.waiting_chunks);
    proto->set_is_awaited(user.is_awaited);
  }
  v1::OthersUse* const others = response->mutable_others();
  others->set_session_count(reply.others.sessions);
  others->set_job_count(reply.others.jobs);
  others->set_chunk_count(reply.others.chunks);
  others->set_device_share_bytes(reply.others.device_share.count());
  others->set_host_share_bytes(reply.others.host_share.count());
}

}  // namespace memtide

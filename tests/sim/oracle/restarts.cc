// The part of Model that judges what a restart leaves.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/model.h"

namespace memtide::sim {

// The daemon died: connections, calls and device memory are gone with it. The next daemon goes on
// with what a record said last, and so does the model.
void Model::BeforeRestart(const Restore& event) {
  probes_.Hit(Probe::kRestarted);
  std::map<JobId, const JobRecord*> records;
  for (const JobRecord& record : event.job_records) records[record.job] = &record;
  std::map<SessionId, JobId> jobs_of;
  for (const auto& [id, session] : state_.sessions) jobs_of[id] = session.job;
  // A publish whose reply is lost may have been recorded.
  for (const auto& [id, call] : state_.calls) {
    const auto* publish = std::get_if<CommitCall>(&call.event);
    if (publish == nullptr || call.permitted.count(absl::StatusCode::kOk) == 0) continue;
    const JobId job = jobs_of[publish->session];
    const auto record = records.find(job);
    const auto known = state_.jobs.find(job);
    if (record == records.end() || known == state_.jobs.end()) continue;
    if (record->second->committed_step != publish->step) continue;
    if (known->second.published + 1 != publish->step) continue;
    probes_.Hit(Probe::kRestartInPublish);
    Publish(&known->second, *publish);
  }
  // Fetches that waited to write may have been let, unheard.
  for (const auto& [id, call] : state_.calls) {
    const auto* fetch = std::get_if<FetchCall>(&call.event);
    if (fetch == nullptr || fetch->access != Access::kWrite) continue;
    for (const ChunkId chunk : fetch->chunks) {
      const auto found = state_.chunks.find(chunk);
      if (found != state_.chunks.end() && found->second.whole == Whole::kYes) {
        found->second.whole = Whole::kUnsure;
      }
    }
  }
  for (const auto& [id, step] : std::exchange(state_.steps, {})) EndStep(step, false);
  for (const auto& [part, step] : std::exchange(state_.parts, {})) EndStep(step, false);
  state_.step_parts = state_.non_finite_gradients = 0;
  for (auto& [id, session] : state_.sessions) {
    for (const auto& [chunk, lease] : session.leases) {
      if (lease.access == Access::kWrite) state_.chunks.at(chunk).whole = Whole::kTorn;
    }
    session.leases.clear();
    session.regions.clear();
    session.asked_back.clear();
    session.remembered.clear();
    session.phase = Phase::kEnded;
    session.gone = true;
  }
  for (const auto& [id, job] : std::map(state_.jobs)) {
    const auto record = records.find(id);
    const bool persistent = state_.config.persistent_jobs && job.time_to_live > Duration(0);
    if (persistent && record != records.end() && IsWithoutHome(*record->second)) {
      EndJob(id);
    } else if (persistent && record != records.end()) {
      for (const auto& [chunk, state] : state_.chunks) {
        if (state.job == id && state.transient) probes_.Hit(Probe::kTransientRestarted);
      }
      EndTransient(id);
      RestoreJob(id, *record->second, event);
    } else if (persistent && !job.IsLate(state_.now)) {
      return Broken(absl::StrCat("job ", id.value(), " outlives the daemon, and has no record"));
    } else {
      EndJob(id);
    }
  }
  for (const auto& [id, record] : records) {
    if (IsWithoutHome(*record)) {
      state_.without_home.insert(id);
    } else if (state_.jobs.count(id) == 0) {
      AdoptJob(*record);
    }
  }
  state_.exposed.clear();
  for (const auto& [id, job] : state_.jobs) {
    for (const RegionId region : job.regions) Expose(region);
  }
  state_.calls.clear();
  state_.dropping.clear();
  state_.pools.clear();
  state_.draining = false;
  // Their ids may come again, where no record remembers them.
  state_.ended_chunks.clear();
}

// None of its home memory could be made: it has no chunk, and may be given up.
bool Model::IsWithoutHome(const JobRecord& record) const {
  return record.shares[static_cast<size_t>(state_.HomeTier())].IsZero();
}

// A job whose memory was being made when the daemon died is there, and has no chunk.
void Model::AdoptJob(const JobRecord& record) {
  JobState job;
  job.uid = record.uid;
  job.name = record.name;
  job.chunk_size = record.chunk_size;
  job.time_to_live = record.time_to_live;
  job.device = record.device;
  job.device_memory = record.device_memory;
  job.regions = {record.regions.begin(), record.regions.end()};
  job.left = state_.now;
  for (const Tier tier : kAllTiers) {
    const size_t at = static_cast<size_t>(tier);
    job.slots[at] = static_cast<uint32_t>(
        std::min<uint64_t>(record.shares[at] / record.chunk_size, state_.config.limits.chunks));
  }
  job.max_chunks = job.slots[static_cast<size_t>(state_.HomeTier())];
  job.resized = state_.events;
  job.opened_by.chunk_size = record.chunk_size;
  for (const auto& [id, call] : state_.calls) {
    const auto* open = std::get_if<OpenCall>(&call.event);
    if (open == nullptr || open->job_name != record.name ||
        state_.FindSession(open->session)->uid != record.uid) {
      continue;
    }
    job.opened_by = *open;
    break;
  }
  job.opened_by.elastic = record.guaranteed[static_cast<size_t>(Tier::kSsd)] != 0;
  state_.jobs.emplace(record.job, std::move(job));
}

void Model::RestoreJob(JobId id, const JobRecord& record, const Restore& event) {
  JobState& job = state_.jobs.at(id);
  if (record.committed_step != job.published || record.manifest != job.manifest ||
      record.name != job.name || record.uid != job.uid || record.chunk_size != job.chunk_size ||
      record.device != job.device) {
    return Broken(absl::StrCat("job ", id.value(), " is recorded at step ", record.committed_step,
                               " instead of ", job.published));
  }
  if (!job.stepped.empty()) probes_.Hit(Probe::kRestartUnpublished);
  for (const Tier tier : kAllTiers) {
    const size_t at = static_cast<size_t>(tier);
    const auto slots = static_cast<uint32_t>(
        std::min<uint64_t>(record.shares[at] / record.chunk_size, state_.config.limits.chunks));
    if (slots != job.slots[at]) job.resized = state_.events;
    job.slots[at] = slots;
  }
  job.sessions.clear();
  job.left = state_.now;
  job.regions = {record.regions.begin(), record.regions.end()};
  job.leaving.clear();
  job.shrunk = 0;
  job.grew = false;
  std::set<ChunkId> recorded;
  for (const ChunkRecord& chunk : event.chunk_records) {
    if (chunk.job != id) continue;
    recorded.insert(chunk.chunk);
    const auto known = state_.chunks.find(chunk.chunk);
    if (known == state_.chunks.end()) {
      return Broken(absl::StrCat("chunk ", chunk.chunk.value(), " is recorded and is not there"));
    }
    ChunkState& state = known->second;
    state.evicted_to.reset();
    if (job.published != 0 && chunk.ssd && chunk.ssd->valid && !chunk.host) {
      probes_.Hit(Probe::kRestartPublishedOnSsd);
    }
    // Content that only the device holds may be lost, and reads as the record says.
    const bool may_be_lost = state_.config.device_slots != 0 && !state.lasting;
    if (chunk.torn && state.whole == Whole::kYes && !may_be_lost) {
      return Broken(absl::StrCat("chunk ", chunk.chunk.value(), " is whole and recorded as torn"));
    }
    // A step that waited to write it may have given up what it held.
    if (!chunk.torn && MayBeTorn(state) && state_.WaitedFor(chunk.chunk)) {
      state.whole = Whole::kUndefined;
    }
    if (!chunk.torn && state.whole == Whole::kTorn) {
      return Broken(absl::StrCat("chunk ", chunk.chunk.value(), " is torn and recorded as whole"));
    }
    if (chunk.torn) {
      state.whole = Whole::kTorn;
    } else if (state.whole == Whole::kUnsure) {
      state.whole = Whole::kYes;
    }
  }
  for (const auto& [chunk, state] : state_.chunks) {
    if (state.job == id && recorded.count(chunk) == 0) {
      return Broken(absl::StrCat("chunk ", chunk.value(), " has no record"));
    }
  }
}

}  // namespace memtide::sim

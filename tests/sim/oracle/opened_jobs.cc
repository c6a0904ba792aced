// The part of Model that judges the job that an OpenReply describes: its name, slots and regions.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/expect.h"
#include "tests/sim/oracle/model.h"
#include "tests/sim/trace.h"

namespace memtide::sim {

void Model::Accept(const Call& call, const OpenCall& open, const OpenReply& reply) {
  SessionState& session = state_.sessions.at(open.session);
  const JobState* join = JobToJoin(state_, open);
  const auto known = state_.jobs.find(reply.job);
  if (join != nullptr && known == state_.jobs.end()) {
    // Only a job whose time has passed may be passed over.
    for (const auto& [id, job] : state_.jobs) {
      if (&job != join) continue;
      if (!job.IsLate(state_.now)) {
        return Broken(absl::StrCat("a second job of the same name: ", ToText(call.event)));
      }
      EndJob(id);
      break;
    }
  }
  if (known != state_.jobs.end()) {
    if (join != &known->second) {
      return Broken(absl::StrCat("joined a job of another name or uid: ", ToText(call.event)));
    }
    if (reply.committed_step != known->second.published ||
        reply.manifest != known->second.manifest) {
      return Broken(absl::StrCat("job ", reply.job.value(), " is opened at step ",
                                 reply.committed_step, " instead of ", known->second.published));
    }
    if (reply.device != known->second.device) {
      return Broken(absl::StrCat("job ", reply.job.value(), " moved to device ", reply.device));
    }
    if (known->second.left) probes_.Hit(Probe::kJobRejoinedAfterLastSession);
    known->second.left.reset();
    if (!known->second.leaving.empty()) probes_.Hit(Probe::kJoinedWhileShrinking);
    known->second.regions.insert(reply.regions.begin(), reply.regions.end());
    known->second.sessions.insert(open.session);
  } else {
    JobState job;
    job.uid = session.uid;
    job.device = reply.device;
    job.name = open.job_name;
    job.chunk_size = reply.chunk_size;
    job.opened_by = open;
    // It has joined a job whose maker asked for no size of device memory, and died while it opened.
    if (open.device_share > reply.chunk_size * reply.device_slots) {
      job.opened_by.device_share = Bytes(0);
    }
    job.time_to_live = open.time_to_live;
    job.max_chunks = reply.max_chunks;
    job.slots[0] = reply.device_slots;
    job.slots[1] = reply.host_slots;
    job.slots[2] = reply.ssd_slots;
    job.device_memory = reply.device_memory;
    job.regions.insert(reply.regions.begin(), reply.regions.end());
    job.sessions.insert(open.session);
    state_.jobs[reply.job] = job;
  }
  const bool on_device = reply.device_slots != 0;
  if (reply.device >= state_.config.devices ||
      (on_device && open.device.value_or(reply.device) != reply.device)) {
    return Broken(absl::StrCat("device ", reply.device, " answers ", ToText(call.event)));
  }
  session.phase = Phase::kOpen;
  session.job = reply.job;
  session.renewed = session.heard = state_.now;
  CheckRegions(state_.jobs.at(reply.job), reply);
}

void Model::CheckRegions(const JobState& job, const OpenReply& reply) {
  const uint32_t slots[kTiers] = {reply.device_slots, reply.host_slots, reply.ssd_slots};
  const Bytes shares[kTiers] = {job.opened_by.device_share, job.opened_by.host_share,
                                job.opened_by.ssd_share};
  const uint32_t usual_slots[kTiers] = {state_.config.device_share, state_.config.host_share,
                                        state_.config.ssd_share};
  const std::set<RegionId> regions(reply.regions.begin(), reply.regions.end());
  std::set<RegionId> remaining = job.regions;
  for (const RegionId leaving : job.leaving) remaining.erase(leaving);
  const bool by_slot = job.device_memory == MemoryKind::kCudaDescriptor;
  if (reply.device_memory != job.device_memory ||
      (reply.device_memory != MemoryKind::kSharedMemory) != state_.config.slot_regions) {
    return Broken(
        absl::StrCat("job ", reply.job.value(), " was lent device memory of a wrong kind"));
  }
  // Memory that could not be made shrinks a job.
  const bool same_size = state_.makes_failed != 0 || reply.max_chunks == job.max_chunks;
  if (reply.chunk_size != job.chunk_size || regions != remaining ||
      regions.size() != reply.regions.size() || !same_size) {
    return Broken(absl::StrCat("job ", reply.job.value(), " is described in two ways"));
  }
  Bytes lent[kTiers];
  uint32_t regions_of[kTiers] = {};
  for (const RegionId id : regions) {
    const auto region = node_.regions().find(id);
    if (region == node_.regions().end() || !region->second.made || region->second.dropping ||
        region->second.uid != job.uid) {
      return Broken(absl::StrCat("job ", reply.job.value(), " was lent region ", id.value(),
                                 ", which is not there or not its tenant's"));
    }
    if (state_.exposed.count(id) != 0) {
      return Broken(absl::StrCat("job ", reply.job.value(), " was joined with region ", id.value(),
                                 ", to which the process of an ended session may write"));
    }
    lent[static_cast<size_t>(region->second.pool.tier)] += region->second.size;
    if (!IsOnDeviceOf(job, region->second)) {
      return Broken(absl::StrCat("job ", reply.job.value(), " on device ", job.device,
                                 " was lent region ", id.value(), " of another"));
    }
    if (by_slot && region->second.pool.tier == Tier::kDevice &&
        region->second.size != reply.chunk_size) {
      return Broken(absl::StrCat("region ", id.value(), " is not one slot"));
    }
    if (++regions_of[static_cast<size_t>(region->second.pool.tier)] == 2) {
      probes_.Hit(Probe::kSeveralRegions);
    }
    for (const auto& [other_id, other] : state_.jobs) {
      if (other_id != reply.job && other.regions.count(id) != 0) {
        return Broken(absl::StrCat("region ", id.value(), " is lent to two jobs"));
      }
    }
  }
  for (const Tier tier : kAllTiers) {
    const size_t at = static_cast<size_t>(tier);
    // One who asked for another share may have joined a job whose maker died while it opened.
    const bool usual = usual_slots[at] != 0 && shares[at] / reply.chunk_size == usual_slots[at];
    const bool resized = tier == Tier::kDevice && job.resized != 0;
    const bool shrunk = tier == Tier::kDevice && job.shrunk != 0;
    if (slots[at] > job.slots[at] || (slots[at] < job.slots[at] && state_.makes_failed == 0) ||
        (usual && state_.makes_failed == 0 && !resized &&
         job.slots[at] !=
             std::min<uint64_t>(shares[at] / reply.chunk_size, state_.config.limits.chunks)) ||
        (lent[at] > reply.chunk_size * slots[at] && !shrunk)) {
      return Broken(absl::StrCat("job ", reply.job.value(), " was not lent its share of ",
                                 std::string(TierName(tier))));
    }
  }
  const uint32_t home = slots[static_cast<size_t>(state_.HomeTier())];
  const uint32_t working = slots[0] != 0 ? slots[0] : slots[1];
  const bool none = reply.max_chunks == 0 || reply.lease_budget == 0;
  if ((none && state_.makes_failed == 0) || reply.max_chunks > home ||
      reply.lease_budget > working || reply.session_lease != state_.config.limits.session_lease) {
    Broken(absl::StrCat("job ", reply.job.value(), ": impossible limits"));
  }
}

}  // namespace memtide::sim

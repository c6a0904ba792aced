// The part of Model that judges shares that change, and the memory that they give back.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/model.h"
#include "tests/sim/trace.h"

namespace memtide::sim {

size_t Model::KeptRegions(const JobState& job) const {
  return static_cast<size_t>(
      std::count_if(job.regions.begin(), job.regions.end(), [&](RegionId id) {
        const auto region = node_.regions().find(id);
        return job.leaving.count(id) == 0 && region != node_.regions().end() &&
               region->second.pool.tier == Tier::kDevice;
      }));
}

bool Model::SharesAreReached() const {
  return std::all_of(state_.jobs.begin(), state_.jobs.end(), [&](const auto& entry) {
    const JobState& job = entry.second;
    return job.device_memory != MemoryKind::kCudaDescriptor || KeptRegions(job) <= job.slots[0];
  });
}

// From the moment that it is asked for, whenever it is reached.
void Model::ApplyResize(const ResizeCall& resize) {
  const JobId id = state_.sessions.at(resize.session).job;
  JobState& job = state_.jobs.at(id);
  unresized_.emplace(id, job);
  const uint32_t slots = static_cast<uint32_t>(resize.device_share / job.chunk_size);
  job.grew = slots > job.slots[0] || job.lacks_device_slots;
  job.resized = state_.events;
  if (slots < job.slots[0]) job.shrunk = state_.events;
  job.slots[0] = slots;
  if (state_.LeasedAt(id, Tier::kDevice).size() > slots) probes_.Hit(Probe::kLeasesAboveShare);
}

void Model::Accept(const Call& call, const ResizeCall& resize, const ResizeReply& reply) {
  const JobState& job = *state_.JobOf(resize.session);
  const bool elastic = job.HasElasticDevice();
  const bool smaller = (reply.device_slots < job.slots[0] && !elastic) || reply.lease_budget == 0;
  if (reply.device_slots > job.slots[0] || (smaller && state_.makes_failed == 0) ||
      reply.lease_budget >= (elastic ? job.slots[0] : reply.device_slots)) {
    return Broken(absl::StrCat(ToText(call.event), ": was answered with ", reply.device_slots,
                               " slots, ", reply.lease_budget, " leases"));
  }
  // Growing takes back nothing of what an earlier resize has asked for.
  const size_t there = KeptRegions(job) + (job.grew ? 0 : job.leaving.size());
  if (there > job.slots[0]) {
    Broken(absl::StrCat(ToText(call.event), ": was answered, and the job has ", there, " regions"));
  }
}

void Model::HitResizeProbes(const Call& call, absl::StatusCode code) {
  using Code = absl::StatusCode;
  if (code == Code::kAborted) probes_.Hit(Probe::kResizeReplaced);
  if (code == Code::kDeadlineExceeded) probes_.Hit(Probe::kResizeLate);
  if (code == Code::kResourceExhausted) probes_.Hit(Probe::kResizeTooLarge);
  if (code != Code::kOk) return;
  probes_.Hit(call.event_number == state_.events ? Probe::kResizedAtOnce : Probe::kShareShrank);
}

void Model::ObserveRegionGone(const SendRegionGone& effect) {
  const auto found = state_.sessions.find(effect.session);
  if (found == state_.sessions.end() || found->second.phase != Phase::kOpen) {
    return Broken(absl::StrCat(ToText(effect), ": nobody there"));
  }
  SessionState& session = found->second;
  JobState& job = state_.jobs.at(session.job);
  const auto region = node_.regions().find(effect.region);
  if (session.regions.count(effect.region) == 0 || region == node_.regions().end() ||
      region->second.pool.tier != Tier::kDevice || region->second.dropping) {
    return Broken(absl::StrCat(ToText(effect), ": it has no such device memory"));
  }
  if (!session.asked_back.insert(effect.region).second) {
    return Broken(absl::StrCat(ToText(effect), ": it was asked back already"));
  }
  job.leaving.insert(effect.region);
  const bool is_share = job.HasElasticDevice() ? effect.device_slots <= job.slots[0]
                                               : effect.device_slots == job.slots[0] &&
                                                     effect.lease_budget < effect.device_slots;
  if (KeptRegions(job) < effect.device_slots || !is_share || effect.lease_budget == 0 ||
      effect.lease_budget >= job.slots[0]) {
    return Broken(absl::StrCat(ToText(effect), ": the job's share is ", job.slots[0], " slots"));
  }
  if (node_.IsInTransfer(effect.region)) {
    return Broken(absl::StrCat(ToText(effect), ": a transfer uses it"));
  }
  for (const auto& [id, other] : state_.sessions) {
    for (const auto& [chunk, lease] : other.leases) {
      if (lease.place.region != effect.region) continue;
      return Broken(absl::StrCat(ToText(effect), ": session ", id.value(), " has a lease there"));
    }
  }
}

}  // namespace memtide::sim

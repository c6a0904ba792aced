// The part of Model that judges what the engine does to memory and connections.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/model.h"
#include "tests/sim/trace.h"

namespace memtide::sim {
namespace {

// A quarter of the slots is left to prefetch into, and one at least.
// A client with a single slot may still lease one chunk at a time.
uint32_t BudgetOf(uint32_t slots) { return slots < 2 ? 1 : slots - std::max(1u, slots / 4); }

}  // namespace

void Model::ObserveRegion(const SendRegion& effect) {
  const auto session = state_.sessions.find(effect.session);
  const auto region = node_.regions().find(effect.region);
  if (session == state_.sessions.end() || session->second.gone) {
    return Broken(absl::StrCat(ToText(effect), ": nobody there"));
  }
  if (region == node_.regions().end() || !region->second.made || region->second.dropping) {
    return Broken(absl::StrCat(ToText(effect), ": no such memory"));
  }
  if (region->second.uid != session->second.uid) {
    return Broken(absl::StrCat(ToText(effect), ": memory of uid ", region->second.uid,
                               " sent to uid ", session->second.uid));
  }
  if (region->second.memory != MemoryKind::kSharedMemory &&
      (region->second.pool.tier != Tier::kDevice || !state_.config.slot_regions)) {
    return Broken(absl::StrCat(ToText(effect), ": not memory that the tier can lend"));
  }
  for (auto& [id, job] : state_.jobs) {
    if (job.leaving.count(effect.region) != 0) {
      return Broken(absl::StrCat(ToText(effect), ": it was asked back already"));
    }
    const bool own = session->second.phase == Phase::kOpen && session->second.job == id;
    if (own && region->second.memory == MemoryKind::kCudaDescriptor && job.shrunk != 0) {
      probes_.Hit(Probe::kRegionAfterGivingBack);
    }
    if (own) job.regions.insert(effect.region);
    if (!own && session->second.phase == Phase::kOpen && job.regions.count(effect.region) != 0) {
      return Broken(absl::StrCat(ToText(effect), ": memory of another job"));
    }
  }
  session->second.regions.insert(effect.region);
}

void Model::ObserveDrop(const DropRegion& effect) {
  for (const auto& [id, session] : state_.sessions) {
    for (const auto& [chunk, lease] : session.leases) {
      if (lease.place.region == effect.region) {
        return Broken(absl::StrCat(ToText(effect), ": session ", id.value(), " has a lease there"));
      }
    }
  }
  state_.dropping.insert(effect.region);
  for (auto& [id, job] : state_.jobs) {
    if (job.regions.count(effect.region) == 0) continue;
    for (const auto& [copy, region] : node_.regions()) {
      if (region.copy_of != effect.region || !region.made || region.dropping) continue;
      if (!job.sessions.empty() || state_.exposed.erase(effect.region) == 0) {
        return Broken(absl::StrCat(ToText(effect), ": replaced although nobody may write to it"));
      }
      job.regions.erase(effect.region);
      job.regions.insert(copy);
      return;
    }
    const bool lingers = job.sessions.empty() && (!job.IsLate(state_.now) || state_.IsAwaited(job));
    const bool gives_way = job.shrunk != 0 || job.HasElasticDevice();
    if (job.leaving.count(effect.region) != 0 || (lingers && gives_way)) {
      if (lingers && job.leaving.count(effect.region) == 0) probes_.Hit(Probe::kShrankLingering);
      job.leaving.insert(effect.region);
      job.regions.erase(effect.region);
      for (const auto& [holder, session] : state_.sessions) {
        if (session.asked_back.count(effect.region) == 0) continue;
        return Broken(
            absl::StrCat(ToText(effect), ": session ", holder.value(), " has not returned it"));
      }
      return;
    }
    if (!job.IsLate(state_.now)) {
      return Broken(absl::StrCat(ToText(effect), ": job ", id.value(), " has not ended"));
    }
    return EndJob(id);
  }
}

void Model::Expose(RegionId id) {
  const auto region = node_.regions().find(id);
  if (region == node_.regions().end() || region->second.pool.tier != Tier::kHost) return;
  if (!region->second.read_only) state_.exposed.insert(id);
}

// Whether the session has leased memory for writing that others of its job may have after it. A
// GPU's memory is in quarantine first.
bool Model::MayStillWrite(SessionId id) const {
  const auto part = state_.parts.lower_bound({id, 0});
  if (part != state_.parts.end() && part->first.first == id) return true;
  const auto& leases = state_.sessions.at(id).leases;
  return std::any_of(leases.begin(), leases.end(), [this, id](const auto& entry) {
    const auto region = node_.regions().find(entry.second.place.region);
    return entry.second.access == Access::kWrite && region != node_.regions().end() &&
           (region->second.pool.tier == Tier::kHost ||
            state_.jobs.at(state_.sessions.at(id).job).device_memory == MemoryKind::kSharedMemory);
  });
}

void Model::ObserveClose(const CloseSession& effect) {
  const auto found = state_.sessions.find(effect.session);
  if (found == state_.sessions.end() || found->second.gone ||
      found->second.phase == Phase::kEnding) {
    return Broken(absl::StrCat(ToText(effect), ": nobody there"));
  }
  SessionState& session = found->second;
  const bool late = state_.now - session.renewed >= state_.config.limits.session_lease;
  if (session.phase == Phase::kConnected) {
    uint32_t others = 0, of_uid = 0;
    for (const auto& [id, other] : state_.sessions) {
      if (id == effect.session || other.gone) continue;
      ++others;
      if (other.uid == session.uid) ++of_uid;
    }
    probes_.Hit(Probe::kSessionRefused);
    if (others < state_.config.limits.sessions && of_uid < state_.config.limits.sessions_per_uid &&
        !state_.draining && !late) {
      return Broken(absl::StrCat(ToText(effect), ": no limit was reached"));
    }
  } else if (session.phase != Phase::kEnded) {
    const JobId job = session.job;
    if (!late && state_.unsafe_jobs.count(job) == 0) {
      return Broken(absl::StrCat(ToText(effect), ": it was renewed in time"));
    }
    probes_.Hit(late ? Probe::kClientHung : Probe::kEndedWithAnother);
    if (late && MayStillWrite(effect.session)) state_.unsafe_jobs.insert(job);
    // Its process has the memory mapped, and may go on.
    for (const RegionId region : session.regions) Expose(region);
  }
  EndSession(effect.session, Whole::kTorn);
  session.phase = Phase::kEnding;
}

void Model::ObserveEmpty(const ReleaseSlot& effect) {
  for (const auto& [id, session] : state_.sessions) {
    for (const auto& [chunk, lease] : session.leases) {
      if (lease.place.region != effect.place.region || lease.place.offset != effect.place.offset) {
        continue;
      }
      return Broken(absl::StrCat(ToText(effect), ": session ", id.value(), " has a lease there"));
    }
  }
}

void Model::ObserveBudget(const SendLeaseBudget& effect) {
  const JobState* job = state_.JobOf(effect.session);
  const bool on_device = job != nullptr && job->slots[0] != 0;
  const uint32_t slots = job == nullptr ? 0 : job->slots[on_device ? 0 : 1];
  if (slots == 0 || (on_device && !job->HasElasticDevice()) || effect.lease_budget == 0 ||
      effect.lease_budget >= slots) {
    return Broken(absl::StrCat(ToText(effect), ": nobody there, or no such budget"));
  }
  if (effect.slots > slots || effect.lease_budget != BudgetOf(effect.slots)) {
    return Broken(absl::StrCat(ToText(effect), ": not the budget of ", effect.slots, " slots"));
  }
  const bool elastic = on_device || job->IsElastic();
  if (effect.most >= slots || (effect.most < effect.lease_budget && !elastic)) {
    return Broken(absl::StrCat(ToText(effect), ": no such number can be in use"));
  }
  if (elastic && effect.most < BudgetOf(slots)) probes_.Hit(Probe::kShareCeded);
}

void Model::ObserveTransfer(const StartTransfer& effect) {
  const bool moves_up = effect.kind == StartTransfer::Kind::kSsdToHost ||
                        effect.kind == StartTransfer::Kind::kHostToDevice;
  if (moves_up && !effect.awaited) probes_.Hit(Probe::kPrefetchMoved);
  for (const auto& [id, job] : state_.jobs) {
    if (effect.kind == StartTransfer::Kind::kSsdToHost && job.regions.count(effect.to.region) &&
        job.slots[0] != 0 && state_.LeasedAt(id, Tier::kHost).size() + 1 >= job.slots[1]) {
      probes_.Hit(Probe::kPassageNarrow);
    }
  }
  if (effect.kind == StartTransfer::Kind::kHostToSsd) {
    state_.written_to_ssd += effect.size;
    if (state_.config.paced &&
        state_.written_to_ssd > BudgetOf(state_.config, state_.now.time_since_epoch())) {
      return Broken(absl::StrCat(ToText(Effect(effect)), ": beyond the budget, with ",
                                 FormatBytes(state_.written_to_ssd), " so far"));
    }
  }
  const bool writes_back = effect.kind == StartTransfer::Kind::kHostToSsd ||
                           effect.kind == StartTransfer::Kind::kDeviceToHost;
  for (const auto& [id, call] : state_.calls) {
    if (writes_back && std::holds_alternative<FetchCall>(call.event)) {
      probes_.Hit(Probe::kWriteBackWhileFetchWaits);
    }
  }
  for (const auto& [id, session] : state_.sessions) {
    for (const auto& [chunk, lease] : session.leases) {
      const auto at = [&lease = lease](MemoryPlace place) {
        return place.region == lease.place.region && place.offset == lease.place.offset;
      };
      if (WritesMemory(effect) && at(effect.to)) {
        return Broken(
            absl::StrCat(ToText(Effect(effect)), ": its target is leased by session ", id.value()));
      }
      if (ReadsMemory(effect) && at(effect.from) && lease.access == Access::kWrite) {
        return Broken(absl::StrCat(ToText(Effect(effect)), ": session ", id.value(),
                                   " may be writing its source"));
      }
    }
  }
  for (const auto& [id, job] : state_.jobs) {
    if ((WritesMemory(effect) && job.leaving.count(effect.to.region) != 0) ||
        (ReadsMemory(effect) && job.leaving.count(effect.from.region) != 0)) {
      return Broken(absl::StrCat(ToText(Effect(effect)), ": in memory that is given back"));
    }
    const bool of_job = (WritesMemory(effect) && job.regions.count(effect.to.region) != 0) ||
                        (ReadsMemory(effect) && job.regions.count(effect.from.region) != 0);
    if (of_job && effect.size != job.chunk_size) {
      return Broken(absl::StrCat(ToText(Effect(effect)), ": not of one chunk's size"));
    }
  }
}

}  // namespace memtide::sim

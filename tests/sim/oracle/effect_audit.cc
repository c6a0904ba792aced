// The part of Model that judges what the engine says about itself: Describe and Inspect.
#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/model.h"
#include "tests/sim/trace.h"

namespace memtide::sim {

void Model::Accept(const Call& call, const DescribeCall& describe, const DescribeReply& reply) {
  if (reply.chunks.size() != describe.chunks.size()) {
    return Broken(absl::StrCat("described another number: ", ToText(call.event)));
  }
  for (size_t at = 0; at < reply.chunks.size(); ++at) {
    const ChunkInfo& info = reply.chunks[at];
    const ChunkState& state = state_.chunks.at(describe.chunks[at]);
    const std::vector<SessionId> holders = state_.Holders(describe.chunks[at]);
    const bool waited = state_.WaitedFor(describe.chunks[at]);
    if (info.chunk != describe.chunks[at] || info.job != state.job || info.kind != state.kind ||
        info.version.value() < state.version.value() || info.leases < holders.size() ||
        (!waited && info.leases != holders.size())) {
      return Broken(absl::StrCat("chunk ", info.chunk.value(), " is described wrongly"));
    }
    const bool torn_known = state.whole != Whole::kUnsure && !waited;
    if (torn_known && info.torn != (state.whole == Whole::kTorn)) {
      return Broken(absl::StrCat("chunk ", info.chunk.value(), " is ", info.torn ? "" : "not ",
                                 "described as torn"));
    }
    if (state.host_home && info.on_ssd) {
      return Broken(absl::StrCat("chunk ", info.chunk.value(), " is below its home"));
    }
    const bool empty = state.discarded > state.wanted;
    if (empty && (info.on_device || info.on_host || info.on_ssd)) {
      return Broken(absl::StrCat("chunk ", info.chunk.value(), " was discarded and has a copy"));
    }
    const bool leaves_host = state.evicted_to == Tier::kSsd && !state.host_home;
    if (state.evicted_to && (info.on_device || (info.on_host && leaves_host))) {
      return Broken(absl::StrCat("chunk ", info.chunk.value(), " was evicted and is still there"));
    }
    for (const SessionId holder : holders) {
      const Lease& lease = state_.sessions.at(holder).leases.at(info.chunk);
      const bool on[kTiers] = {info.on_device, info.on_host, info.on_ssd};
      const int copies = info.on_device + info.on_host + info.on_ssd;
      if (!on[static_cast<size_t>(lease.tier)] || (lease.access == Access::kWrite && copies != 1)) {
        return Broken(
            absl::StrCat("chunk ", info.chunk.value(), " has other copies than its lease says"));
      }
    }
  }
}

void Model::Accept(const Call& call, const InspectCall& inspect, const InspectReply& reply) {
  CheckPools(reply);
  CheckKinds(reply);
  if (reply.chunk_count != state_.chunks.size()) {
    const bool lingers = std::any_of(state_.jobs.begin(), state_.jobs.end(), [&](const auto& job) {
      return job.second.IsLate(state_.now);
    });
    if (!lingers) {
      return Broken(
          absl::StrCat("counts ", reply.chunk_count, " chunks instead of ", state_.chunks.size()));
    }
  }
  if (reply.transfers_in_flight != node_.transfers()) {
    return Broken(absl::StrCat("counts ", reply.transfers_in_flight, " transfers instead of ",
                               node_.transfers()));
  }
  uint32_t least = 0, most = 0;
  for (const auto& [id, session] : state_.sessions) {
    if (!session.gone) ++most;
    if (session.phase != Phase::kEnding && session.phase != Phase::kEnded) ++least;
  }
  if (reply.session_count < least || reply.session_count > most ||
      reply.waiting_calls > state_.calls.size() + state_.parts.size() ||
      reply.draining != state_.draining) {
    return Broken(absl::StrCat("counts of sessions or calls are wrong: ",
                               ToText(Effect(Reply{inspect.call, absl::OkStatus(), reply}))));
  }
  if (reply.counters.step_parts != state_.step_parts ||
      reply.counters.non_finite_gradients != state_.non_finite_gradients) {
    return Broken(absl::StrCat("counts ", reply.counters.step_parts, " step parts instead of ",
                               state_.step_parts, ", or other gradients"));
  }
  if (reply.chunks.size() > inspect.max_chunks) return Broken("more chunks than asked for");
  for (const ChunkInfo& info : reply.chunks) {
    if (state_.ended_chunks.count(info.chunk) != 0) {
      return Broken(absl::StrCat("lists chunk ", info.chunk.value(), ", which ended"));
    }
  }
  for (const SessionInfo& info : reply.sessions) {
    const SessionState* session = state_.FindSession(info.session);
    if (session == nullptr || info.uid != session->uid || info.leases < session->leases.size() ||
        (info.open != (session->phase == Phase::kOpen) && session->phase != Phase::kEnding)) {
      return Broken(absl::StrCat("session ", info.session.value(), " is listed wrongly"));
    }
    const JobState* job = state_.JobOf(info.session);
    if (job != nullptr && info.device != job->device) {
      return Broken(absl::StrCat("job ", info.job.value(), " is listed on another device"));
    }
    if (job != nullptr && !job->HasElasticDevice() &&
        info.device_share < job->chunk_size * job->slots[0]) {
      return Broken(absl::StrCat("job ", info.job.value(), " is charged for less than its share"));
    }
  }
  if (reply.counters.dropped_clean != 0) probes_.Hit(Probe::kDroppedClean);
}

void Model::CheckPools(const InspectReply& reply) {
  const EngineOptions options = ToOptions(state_.config);
  const size_t count = options.device_capacities.size() + !options.host_capacity.IsZero() +
                       !options.ssd_capacity.IsZero();
  std::set<std::string> names;
  for (const PoolUsage& usage : reply.pools) {
    const Pool pool = usage.pool;
    const std::string name = PoolName(pool);
    const bool on_device = pool.tier == Tier::kDevice;
    names.insert(name);
    if (on_device && pool.device >= options.device_capacities.size()) {
      return Broken(absl::StrCat("there is no ", name));
    }
    const Bytes capacity = on_device                  ? options.device_capacities[pool.device]
                           : pool.tier == Tier::kHost ? options.host_capacity
                                                      : options.ssd_capacity;
    if (usage.capacity != capacity ||
        usage.used + usage.reserved + usage.balloon + usage.scrubbing + usage.free != capacity) {
      return Broken(absl::StrCat("the ", name, " pool does not sum to its capacity"));
    }
    if (capacity - usage.free < node_.Held(pool)) {
      return Broken(absl::StrCat(
          "the ", name, " pool lends memory twice: ", FormatBytes(node_.Held(pool)), " exist, ",
          FormatBytes(usage.free), " of ", FormatBytes(capacity), " are called free"));
    }
    Bytes leaving, leased;
    for (const auto& [id, job] : state_.jobs) {
      if (on_device && job.device != pool.device) continue;
      if (on_device) leaving += job.chunk_size * job.leaving.size();
      leased += job.chunk_size * state_.LeasedAt(id, pool.tier).size();
    }
    if (usage.scrubbing < leaving) {
      return Broken(absl::StrCat("the ", name, " pool forgets regions that are given back"));
    }
    if (usage.used < leased) {
      return Broken(absl::StrCat("the ", name, " pool calls leased slots unused"));
    }
  }
  if (names.size() != count || reply.pools.size() != count) return Broken("pools are missing");
  state_.pools = reply.pools;
}

void Model::CheckKinds(const InspectReply& reply) {
  Bytes allocated[kChunkKinds];
  for (const auto& [id, chunk] : state_.chunks) {
    const auto job = state_.jobs.find(chunk.job);
    if (job != state_.jobs.end() && !job->second.IsLate(state_.now)) {
      allocated[static_cast<size_t>(chunk.kind)] += job->second.chunk_size;
    }
  }
  for (const KindUsage& kind : reply.kinds) {
    if (kind.allocated < allocated[static_cast<size_t>(kind.kind)]) {
      return Broken(
          absl::StrCat("kind ", static_cast<int>(kind.kind), " is counted with too few bytes"));
    }
  }
}

}  // namespace memtide::sim

// The part of Model that judges leases: the right slot, alone, with the right bytes.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/model.h"
#include "tests/sim/trace.h"

namespace memtide::sim {
namespace {

bool Same(MemoryPlace a, MemoryPlace b) { return a.region == b.region && a.offset == b.offset; }

}  // namespace

void Model::Accept(const Call& call, const FetchCall& fetch, const FetchReply& reply) {
  if (reply.leases.size() != fetch.chunks.size()) {
    return Broken(absl::StrCat("leased another number: ", ToText(call.event)));
  }
  size_t before[kTiers];
  for (const Tier tier : kAllTiers) {
    before[static_cast<size_t>(tier)] =
        state_.LeasedAt(state_.FindSession(fetch.session)->job, tier).size();
  }
  for (size_t at = 0; at < reply.leases.size(); ++at) Grant(fetch, at, reply.leases[at]);
  if (!verdict_.ok()) return;
  if (reply.leaving > 0) probes_.Hit(Probe::kLeaseLeaves);
  if (reply.ahead.reads.size() + reply.ahead.writes.size() > 0) probes_.Hit(Probe::kNamedAhead);
  for (const auto* named : {&reply.ahead.reads, &reply.ahead.writes, &reply.eviction_hints}) {
    for (const ChunkId chunk : *named) {
      if (state_.Owns(fetch.session, chunk)) continue;
      return Broken(absl::StrCat("names chunk ", chunk.value(), ", which is not there"));
    }
  }
  const JobState* job = state_.JobOf(fetch.session);
  const JobId id = state_.FindSession(fetch.session)->job;
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const uint32_t slots = job->slots[static_cast<size_t>(tier)];
    const size_t leased = state_.LeasedAt(id, tier).size();
    // A share that shrank may have more leases than it permits, but no new ones.
    if (leased > slots && leased > before[static_cast<size_t>(tier)]) {
      return Broken(absl::StrCat("more leases than slots: ", ToText(call.event)));
    }
  }
}

void Model::Grant(const FetchCall& fetch, size_t at, const Lease& lease) {
  const ChunkId chunk = fetch.chunks[at];
  const bool writes = fetch.access == Access::kWrite;
  if (lease.chunk != chunk) {
    return Broken(
        absl::StrCat("leased chunk ", lease.chunk.value(), " instead of ", chunk.value()));
  }
  if (!state_.Owns(fetch.session, chunk)) {
    return Broken(absl::StrCat("leased chunk ", chunk.value(), ", which is not there"));
  }
  ChunkState& state = state_.chunks.at(chunk);
  SessionState& session = state_.sessions.at(fetch.session);
  const auto held = session.leases.find(chunk);
  const bool is_held = held != session.leases.end();
  if (state_.LeasedByOther(fetch.session, chunk, !writes)) {
    return Broken(absl::StrCat("leased chunk ", chunk.value(), " beside a lease that excludes it"));
  }
  if (is_held) {
    CheckKept(fetch, held->second, lease);
  } else if (lease.tier != fetch.tier || lease.access != fetch.access) {
    return Broken(absl::StrCat("leased chunk ", chunk.value(), " elsewhere or otherwise"));
  }
  const bool new_version = writes && !(is_held && held->second.access == Access::kWrite);
  if (new_version ? lease.version.value() <= state.version.value()
                  : lease.version.value() < state.version.value()) {
    return Broken(absl::StrCat("chunk ", chunk.value(), " went back to version ",
                               lease.version.value(), " from ", state.version.value()));
  }
  if (state_.IsStepped(chunk, !writes)) {
    return Broken(absl::StrCat("leased chunk ", chunk.value(), " beside a step that runs"));
  }
  CheckPlace(fetch.session, lease);
  if (verdict_.ok()) CheckContent(fetch, lease, is_held);
  if (!verdict_.ok()) return;
  for (const SessionId holder : state_.Holders(chunk)) {
    if (holder != fetch.session) probes_.Hit(Probe::kSharedReadLease);
  }
  state.version = lease.version;
  // As in BeginStep().
  state.evicted_to.reset();
  state.wanted = state_.events;
  if (lease.tier == Tier::kHost) {
    state.lasting = true;
  } else if (writes) {
    state.lasting = false;
  }
  session.leases[chunk] = lease;
}

void Model::CheckKept(const FetchCall& fetch, const Lease& held, const Lease& lease) {
  const bool upgraded = fetch.access == Access::kWrite && held.access == Access::kRead;
  const Access access = upgraded ? Access::kWrite : held.access;
  if (lease.tier != held.tier || !Same(lease.place, held.place) || lease.access != access ||
      (!upgraded && lease.version != held.version)) {
    Broken(absl::StrCat("the lease on chunk ", lease.chunk.value(), " was held and not kept"));
  }
  if (upgraded) probes_.Hit(Probe::kUpgraded);
}

void Model::CheckPlace(SessionId id, const Lease& lease) {
  const SessionState& session = state_.sessions.at(id);
  const JobState& job = state_.jobs.at(session.job);
  const auto region = node_.regions().find(lease.place.region);
  const std::string what = absl::StrCat("chunk ", lease.chunk.value(), " was leased ");
  if (job.leaving.count(lease.place.region) != 0) {
    return Broken(absl::StrCat(what, "in memory that is given back"));
  }
  if (job.regions.count(lease.place.region) == 0 || region == node_.regions().end() ||
      region->second.pool.tier != lease.tier || region->second.dropping) {
    return Broken(absl::StrCat(what, "outside the job's memory of the tier"));
  }
  if (!IsOnDeviceOf(job, region->second)) {
    return Broken(absl::StrCat(what, "on a device that is not its job's"));
  }
  if (session.regions.count(lease.place.region) == 0) {
    return Broken(absl::StrCat(what, "in a region that session ", id.value(), " never got"));
  }
  const absl::optional<Bytes> end = CheckedAdd(lease.place.offset, job.chunk_size);
  if (!lease.place.offset.IsMultipleOf(job.chunk_size) || !end || *end > region->second.size) {
    return Broken(absl::StrCat(what, "at no slot of the region"));
  }
  if (node_.IsTarget(lease.place)) return Broken(absl::StrCat(what, "while it is being filled"));
  for (const auto& [other_id, other] : state_.sessions) {
    for (const auto& [chunk, held] : other.leases) {
      if (chunk != lease.chunk && Same(held.place, lease.place)) {
        return Broken(absl::StrCat(what, "in the slot of chunk ", chunk.value()));
      }
      if (chunk == lease.chunk && held.tier == lease.tier && !Same(held.place, lease.place)) {
        return Broken(absl::StrCat(what, "in two slots of one tier"));
      }
    }
  }
}

void Model::CheckContent(const FetchCall& fetch, const Lease& lease, bool is_held) {
  ChunkState& state = state_.chunks.at(lease.chunk);
  const Stamp seen = node_.Read(lease.place);
  if (state.whole == Whole::kUndefined) {
    probes_.Hit(Probe::kUndefinedLeased);
    state.content = seen;
  }
  if (state.whole == Whole::kTorn && fetch.access == Access::kRead) {
    return Broken(absl::StrCat("torn chunk ", lease.chunk.value(), " leased for reading"));
  }
  if (MayBeTorn(state) && fetch.access == Access::kWrite) {
    probes_.Hit(Probe::kTornRewritten);
    state.content = seen;
  }
  state.whole = Whole::kYes;
  if (seen != state.content) {
    Broken(absl::StrCat("WRONG BYTES: chunk ", lease.chunk.value(), " shows ",
                        FakeNode::IsPoison(seen) ? "poison " : "", seen & ~(Stamp{1} << 63),
                        " where ", state.content, " was written",
                        is_held ? " (a lease that was held)" : ""));
  }
}

}  // namespace memtide::sim

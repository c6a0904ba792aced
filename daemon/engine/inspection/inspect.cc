// Inspect: what operators and metrics see.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "daemon/engine/info.h"
#include "daemon/engine/inspection/inspection.h"

namespace memtide {

namespace {

// A walk over 16,384 chunks takes less than a millisecond. Sums over more are used again for
// kSumsLast, so that no series of inspections holds up other calls.
constexpr size_t kAlwaysWalked = 1 << 14;
constexpr Duration kSumsLast = std::chrono::milliseconds(100);
// Entries of the chunk table that one page examines: other users may have all of them.
constexpr size_t kExaminedPerPage = 1 << 16;

std::vector<KindUsage> NoUsage() {
  std::vector<KindUsage> kinds(kChunkKinds);
  int number = 0;
  for (KindUsage& each : kinds) each.kind = static_cast<ChunkKind>(number++);
  return kinds;
}

void Add(const Chunk& chunk, size_t names, std::vector<KindUsage>* kinds) {
  KindUsage& kind = (*kinds)[static_cast<int>(chunk.kind)];
  const Bytes size = chunk.job->chunk_size;
  kind.allocated += size;
  if (names > 1) kind.shared += size * (names - 1);
  // A chunk may have valid copies on several tiers, so these sums may exceed what is allocated.
  if (chunk.valid_at(Tier::kDevice)) kind.device += size;
  if (chunk.valid_at(Tier::kHost)) kind.host += size;
  if (chunk.valid_at(Tier::kSsd)) kind.ssd += size;
}

// Whether the caller may see what is the user's.
bool IsShown(const InspectCall& event, uint32_t uid) { return event.viewer.value_or(uid) == uid; }

}  // namespace

Inspection::ChunkSums Inspection::SumChunks() const {
  ChunkSums sums{core_.now, NoUsage(), {}, {}};
  for (const auto& [id, job] : core_.jobs) sums.of_jobs.emplace(id, NoUsage());
  for (const auto& [id, session] : core_.sessions) {
    if (session.job == nullptr || !session.job->shares_contents()) continue;
    sums.of_ranks.emplace(id, RankUse());
  }
  std::set<const CommonContent*> counted;
  for (uint32_t i = 0; i < core_.chunks.size(); ++i) {
    const Chunk& chunk = core_.chunks[ChunkIndex(i)];
    if (!chunk.live()) continue;
    const Bytes size = chunk.job->chunk_size;
    const std::vector<Name>& names = chunk.job->names.NamesOf(ChunkIndex(i));
    // A content common to sessions is counted once among all jobs, and one common to duplicates
    // also once in their job.
    const bool is_counted = chunk.common() != nullptr && !counted.insert(chunk.common()).second;
    std::vector<KindUsage>& of_job = sums.of_jobs.at(chunk.job->id);
    if (is_counted && chunk.common()->of == &chunk.job->duplicated) {
      of_job[static_cast<int>(chunk.kind)].shared += size;
    } else {
      Add(chunk, names.size(), &of_job);
    }
    if (is_counted) {
      sums.all[static_cast<int>(chunk.kind)].shared += size;
    } else {
      Add(chunk, names.size(), &sums.all);
    }
    if (!chunk.job->shares_contents()) continue;
    if (names.empty()) {
      const auto own = sums.of_ranks.find(chunk.owner);
      if (own != sums.of_ranks.end()) own->second.named += size;
    }
    for (const Name& name : names) {
      const auto use = sums.of_ranks.find(name.owner);
      if (use == sums.of_ranks.end()) continue;
      use->second.named += size;
      if (names.size() > 1) use->second.shared += size;
    }
  }
  return sums;
}

// REQUIRES: chunk_sums_ is set. A job that is younger than it has no chunks in it.
void Inspection::ListSession(const Session& session, InspectReply* seen) const {
  SessionInfo info;
  info.session = session.id;
  info.uid = session.uid;
  info.pid = session.pid;
  info.leases = session.leases.value();
  // A session has its job before the Open is answered.
  info.open = session.job != nullptr && !session.opening;
  if (info.open) {
    const Job& job = *session.job;
    info.job = job.id;
    info.job_name = job.name;
    info.rank = session.rank;
    info.ranks = job.ranks;
    info.chunk_size = job.chunk_size;
    info.device = job.share(Tier::kDevice).pool().device;
    info.device_share = job.share(Tier::kDevice).bytes();
    info.host_share = job.share(Tier::kHost).bytes();
    info.host_balloon = info.chunk_size * job.share(Tier::kHost).balloon();
    const auto kinds = chunk_sums_->of_jobs.find(job.id);
    info.kinds = kinds == chunk_sums_->of_jobs.end() ? NoUsage() : kinds->second;
    const auto use = chunk_sums_->of_ranks.find(session.id);
    if (use != chunk_sums_->of_ranks.end()) info.rank_use = use->second;
  }
  seen->sessions.push_back(std::move(info));
}

// The chunks come in pages, because a reply with all of them would exceed the largest message.
void Inspection::ListChunks(const InspectCall& event, InspectReply* seen) const {
  const size_t most = std::min(event.max_chunks, core_.options.limits.chunks_per_call);
  if (most == 0) return;
  const size_t end = std::min<size_t>(core_.chunks.size(), event.first_chunk + kExaminedPerPage);
  size_t i = event.first_chunk;
  for (; i < end && seen->chunks.size() < most; ++i) {
    const ChunkIndex index(static_cast<uint32_t>(i));
    if (!core_.chunks[index].live()) continue;
    if (event.viewer.value_or(core_.chunks[index].job->uid) != core_.chunks[index].job->uid)
      continue;
    seen->chunks.push_back(InfoOf(core_, index));
  }
  if (i < core_.chunks.size()) seen->next_chunk = static_cast<uint32_t>(i);
}

void Inspection::ListJobs(const InspectCall& event, InspectReply* seen) const {
  for (const auto& [id, job] : core_.jobs) {
    seen->waiting_calls += static_cast<uint32_t>(job->joining.size() + job->allocating.size() +
                                                 job->resize.has_value());
    if (IsShown(event, job->uid)) {
      // The hidden one is part of those that use it.
      if (event.jobs && job->contents == nullptr) seen->jobs.push_back(InfoOf(core_, *job));
      continue;
    }
    seen->others.jobs += job->contents == nullptr;
    seen->others.chunks += job->members.live();
    seen->others.device_share += job->share(Tier::kDevice).bytes();
    seen->others.host_share += job->share(Tier::kHost).bytes();
  }
}

void Inspection::On(const InspectCall& event) {
  const bool is_old = !chunk_sums_.has_value() || core_.chunks.size() <= kAlwaysWalked ||
                      core_.now - chunk_sums_->at >= kSumsLast;
  if (is_old) chunk_sums_ = SumChunks();
  InspectReply seen;
  for (const Pool pool : core_.ledger.pools().Pools()) {
    PoolUsage usage = core_.ledger.pools().Usage(pool);
    if (event.caller) {
      usage.obtainable =
          core_.ledger.quotas().MostByQuotas(*event.caller, pool.tier, usage.obtainable);
    }
    seen.pools.push_back(usage);
  }
  seen.kinds = chunk_sums_->all;
  seen.counters = core_.counters;
  seen.limits = core_.options.limits;
  seen.session_count = static_cast<uint32_t>(core_.sessions.size());
  seen.chunk_count = core_.chunks.live();
  seen.remembered_chunks = core_.sessions.remembered_chunks();
  seen.waiting_calls =
      static_cast<uint32_t>(core_.opens.size() + calls_.pending() + offers_.waiting());
  ListJobs(event, &seen);
  seen.transfers_in_flight = static_cast<uint32_t>(core_.transfers.size());
  seen.draining = core_.draining;
  seen.drives = core_.writes.DriveUse(core_.now);
  for (const UserWrites& user : core_.writes.UserUse(core_.now)) {
    seen.users_at_budget += user.is_awaited;
    if (IsShown(event, user.uid)) seen.users.push_back(user);
  }
  if (event.past_writes) seen.past_writes = core_.writes.Past(core_.now);
  seen.refuses_sessions = core_.refuses_sessions;
  if (event.jobs) {
    seen.quotas = core_.ledger.quotas().QuotaUses(event.viewer ? event.caller : absl::nullopt);
    for (QuotaUse& use : seen.quotas) use.written_last_day = core_.writes.LastDayOf(core_.now, use);
  }
  for (const auto& [id, session] : core_.sessions) {
    if (!IsShown(event, session.uid)) {
      ++seen.others.sessions;
    } else if (event.sessions) {
      ListSession(session, &seen);
    }
  }
  ListChunks(event, &seen);
  core_.AnswerWith(event.call, std::move(seen));
}

}  // namespace memtide

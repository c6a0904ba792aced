// Inspect and drain: what operators and metrics see.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "daemon/engine/state.h"

namespace memtide {

std::vector<KindUsage> EngineState::Kinds(const Job* job) const {
  std::vector<KindUsage> kinds(kChunkKinds);
  for (int i = 0; i < kChunkKinds; ++i) kinds[i].kind = static_cast<ChunkKind>(i);
  std::set<const CommonContent*> counted;
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[ChunkIndex(i)];
    if (!chunk.live() || (job != nullptr && chunk.job != job)) continue;
    KindUsage& kind = kinds[static_cast<int>(chunk.kind)];
    const Bytes size = chunk.job->chunk_size;
    // What sessions have in common is counted once among all jobs.
    if (job == nullptr && chunk.common != nullptr && !counted.insert(chunk.common).second) {
      kind.shared += size;
      continue;
    }
    kind.allocated += size;
    const size_t names = chunk.job->names.NamesOf(ChunkIndex(i)).size();
    if (names > 1) kind.shared += size * (names - 1);
    // A chunk may have valid copies on several tiers, so these sums may exceed what is allocated.
    if (chunk.valid_at(Tier::kDevice)) kind.device += size;
    if (chunk.valid_at(Tier::kHost)) kind.host += size;
    if (chunk.valid_at(Tier::kSsd)) kind.ssd += size;
  }
  return kinds;
}

// By ranks' sessions, what their ids name.
std::map<SessionId, RankUse> EngineState::RankUses() const {
  std::map<SessionId, RankUse> uses;
  for (const auto& [id, session] : sessions_) {
    if (session.job == nullptr || !session.job->shares_contents()) continue;
    uses.emplace(id, RankUse());
  }
  if (uses.empty()) return uses;
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[ChunkIndex(i)];
    if (!chunk.live() || !chunk.job->shares_contents()) continue;
    const Bytes size = chunk.job->chunk_size;
    const std::vector<Name>& names = chunk.job->names.NamesOf(ChunkIndex(i));
    if (names.empty()) {
      const auto own = uses.find(chunk.owner);
      if (own != uses.end()) own->second.named += size;
    }
    for (const Name& name : names) {
      const auto use = uses.find(name.owner);
      if (use == uses.end()) continue;
      use->second.named += size;
      if (names.size() > 1) use->second.shared += size;
    }
  }
  return uses;
}

void EngineState::On(const InspectCall& event) {
  InspectReply seen;
  for (const Pool pool : ledger_.Pools()) seen.pools.push_back(ledger_.Usage(pool));
  seen.kinds = Kinds(nullptr);
  seen.counters = counters_;
  seen.limits = options_.limits;
  seen.session_count = static_cast<uint32_t>(sessions_.size());
  seen.chunk_count = chunks_.live();
  seen.remembered_chunks = sessions_.remembered_chunks();
  seen.waiting_calls = static_cast<uint32_t>(opens_.size() + waiters_.size() + evicts_.size() +
                                             steps_.size() + offers_.size());
  for (const auto& [id, job] : jobs_) {
    seen.waiting_calls += static_cast<uint32_t>(job->joining.size() + job->allocating.size() +
                                                job->resize.has_value());
  }
  seen.transfers_in_flight = static_cast<uint32_t>(transfers_.size());
  seen.draining = draining_;
  const std::map<SessionId, RankUse> rank_uses =
      event.sessions ? RankUses() : std::map<SessionId, RankUse>();
  for (const auto& [id, session] : sessions_) {
    if (!event.sessions) break;
    SessionInfo info;
    info.session = id;
    info.uid = session.uid;
    info.pid = session.pid;
    info.leases = session.leases.value();
    // A session has its job before the Open is answered.
    info.open = session.job != nullptr && !session.opening;
    if (info.open) {
      info.job = session.job->id;
      info.job_name = session.job->name;
      info.rank = session.rank;
      info.ranks = session.job->ranks;
      info.chunk_size = session.job->chunk_size;
      info.device = session.job->share(Tier::kDevice).pool().device;
      info.device_share = session.job->share(Tier::kDevice).bytes();
      info.host_share = session.job->share(Tier::kHost).bytes();
      info.host_balloon = info.chunk_size * session.job->share(Tier::kHost).balloon();
      info.kinds = Kinds(session.job);
      const auto use = rank_uses.find(id);
      if (use != rank_uses.end()) info.rank_use = use->second;
    }
    seen.sessions.push_back(std::move(info));
  }
  // The chunks come in pages, because a reply with all of them would exceed the largest message.
  const size_t most = std::min(event.max_chunks, options_.limits.chunks_per_call);
  for (size_t i = event.first_chunk; i < chunks_.size() && seen.chunks.size() < most; ++i) {
    const ChunkIndex index(static_cast<uint32_t>(i));
    if (chunks_[index].live()) seen.chunks.push_back(InfoOf(index));
  }
  Reply reply;
  reply.call = event.call;
  reply.value = std::move(seen);
  Emit(std::move(reply));
}

// From now on the daemon takes no session, job, allocation or resize. Fetches and steps that wait
// still end as usual.
void EngineState::On(const DrainCall& event) {
  draining_ = true;
  for (const auto& [id, job] : jobs_) {
    EndResize(*job, absl::UnavailableError("the memtide daemon is draining; the new share holds"));
  }
  drain_calls_.push_back(event.call);
}

// Runs after each event. A DrainCall is answered when no memory moves and no call waits for chunks,
// so that the daemon may end.
void EngineState::AnswerDrained() {
  if (!transfers_.empty() || !waiters_.empty() || !evicts_.empty() || !steps_.empty()) return;
  for (const CallId call : drain_calls_) Answer(call);
  drain_calls_.clear();
}

}  // namespace memtide

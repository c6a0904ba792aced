// Commits of ranks that share contents: one event commits a step for all that are behind it.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/engine/state.h"

namespace memtide {

void EngineState::CommitWithRanks(Job& job, const CommitCall& event) {
  job.commits.push_back({event, now_ + options_.limits.max_wait});
  TryCommitTogether(job);
}

// Ends the commit of this session that waits, if there is one.
void EngineState::RefuseCommit(Job& job, SessionId session, const absl::Status& why) {
  const auto waiting = std::find_if(
      job.commits.begin(), job.commits.end(),
      [session](const WaitingCommit& commit) { return commit.call.session == session; });
  if (waiting == job.commits.end()) return;
  Refuse(waiting->call.call, why);
  job.commits.erase(waiting);
}

// Commits the oldest step that is wanted, when every rank that shares a content and has not
// committed it has called.
void EngineState::TryCommitTogether(Job& job) {
  if (job.commits.empty()) return;
  const auto is_older = [](const WaitingCommit& a, const WaitingCommit& b) {
    return a.call.step < b.call.step;
  };
  const uint64_t step =
      std::min_element(job.commits.begin(), job.commits.end(), is_older)->call.step;
  for (const SessionId id : job.sessions) {
    const bool has_called =
        std::any_of(job.commits.begin(), job.commits.end(), [&](const WaitingCommit& commit) {
          return commit.call.session == id && commit.call.step == step;
        });
    const bool is_behind = sessions_.Find(id)->committed_step < step;
    if (!has_called && is_behind && job.names.Shares(id)) return;
  }
  std::vector<WaitingCommit> commits, later;
  for (WaitingCommit& commit : job.commits) {
    (commit.call.step == step ? commits : later).push_back(std::move(commit));
  }
  job.commits = std::move(later);
  absl::Status status;
  std::map<std::pair<ChunkIndex, ChunkIndex>, std::vector<CommittedIds>> pairs;
  for (const WaitingCommit& commit : commits) {
    const CommitCall& call = commit.call;
    for (size_t i = 0; status.ok() && i < call.chunks.size(); ++i) {
      const absl::optional<ChunkIndex> chunk = Find(job, call.chunks[i]);
      const absl::optional<ChunkIndex> shadow = Find(job, call.shadows[i]);
      if (!chunk.has_value() || !shadow.has_value()) {
        status = absl::NotFoundError("a chunk was freed while its commit waited");
        continue;
      }
      const auto& left = sessions_.Find(call.session)->left_behind;
      if (left.count(call.chunks[i]) > 0 || left.count(call.shadows[i]) > 0) {
        status = absl::AbortedError(absl::StrCat("chunk ", call.chunks[i].value(),
                                                 " or its shadow chunk is leased; release it and "
                                                 "try again"));
      }
      pairs[{*chunk, *shadow}].push_back({call.session, call.chunks[i], call.shadows[i]});
    }
  }
  for (const auto& [entries, ids] : pairs) {
    const auto [chunk, shadow] = entries;
    if (status.ok() && (IsInUse(job, chunk, shadow, ids) || IsInUse(job, shadow, chunk, ids))) {
      status = absl::AbortedError(absl::StrCat("chunk ", ids.front().chunk.value(),
                                               " or its shadow chunk is in use; release it and ",
                                               "try again"));
    }
  }
  if (!status.ok()) {
    for (const WaitingCommit& commit : commits) Refuse(commit.call.call, status);
    return TryCommitTogether(job);
  }

  std::set<ChunkId> shadows;
  for (const auto& [entries, ids] : pairs) {
    ExchangeContents(job, entries.first, entries.second, ids);
  }
  for (const WaitingCommit& commit : commits) {
    const CommitCall& call = commit.call;
    if (!call.keep_old_content) shadows.insert(call.shadows.begin(), call.shadows.end());
  }
  DiscardShadows(job, shadows);
  job.committed_step = std::max(job.committed_step, step);
  job.parts.ForgetBefore(job.committed_step);
  for (const WaitingCommit& commit : commits) {
    sessions_.Find(commit.call.session)->committed_step = step;
    ++counters_.steps_committed;
    Answer(commit.call.call);
  }
  TryCommitTogether(job);
}

// Whether all ids of both entries are committed, so that what the entries hold may be exchanged.
bool EngineState::CommitsAllOf(const Job& job, ChunkIndex a, ChunkIndex b,
                               const std::vector<CommittedIds>& ids) const {
  const auto names = [&job](ChunkIndex index) {
    return std::max<size_t>(1, job.names.NamesOf(index).size());
  };
  return names(a) == ids.size() && names(b) == ids.size();
}

// Whether a lease, or a call that waits, stands against a commit of `index` with `other`. Those of
// other sessions do not, where only ids change what they name.
bool EngineState::IsInUse(const Job& job, ChunkIndex index, ChunkIndex other,
                          const std::vector<CommittedIds>& ids) {
  Chunk& chunk = chunks_[index];
  if (CommitsAllOf(job, index, other, ids)) {
    return chunk.pinned() || !chunk.evicts.empty() || job.waiting.NextNaming(index, 0) != nullptr;
  }
  return std::any_of(ids.begin(), ids.end(), [&](const CommittedIds& each) {
    const bool is_pinned =
        std::any_of(chunk.pins.begin(), chunk.pins.end(), [this, &each](const Pin& pin) {
          const auto step = steps_.find(StepId(pin.session.value()));
          const bool is_step = IsStep(pin.session) && step != steps_.end();
          return pin.session == each.session ||
                 (is_step && (step->second.owner == each.session || pin.access == Access::kWrite));
        });
    return is_pinned || HasCallFor(*sessions_.Find(each.session), index);
  });
}

// Some ranks commit the same pair of entries, by these ids.
void EngineState::ExchangeContents(Job& job, ChunkIndex chunk, ChunkIndex shadow,
                                   const std::vector<CommittedIds>& ids) {
  UnlinkShadow(chunk);
  UnlinkShadow(shadow);
  // Predictions stay with the ids.
  if (CommitsAllOf(job, chunk, shadow, ids)) {
    SwapContents(chunk, shadow);
    ResultMoved(shadow, chunk);
    LinkShadow(chunk, shadow);
    return;
  }
  for (const CommittedIds& each : ids) {
    job.names.Exchange(NameOf(job, each.chunk, chunk), chunk, OwnName(chunk),
                       NameOf(job, each.shadow, shadow), shadow, OwnName(shadow));
  }
}

// A commit has exchanged what the two entries hold. If `from` held the result of a part, ranks that
// are late find it in `to`. What has been written since is no result.
void EngineState::ResultMoved(ChunkIndex from, ChunkIndex to) {
  SharedParts& parts = chunks_[to].job->parts;
  parts.ForgetWriter(to);
  if (chunks_[to].is_made()) {
    parts.Move(from, to, IdOf(to), chunks_[to].version);
  } else {
    parts.ForgetWriter(from);
  }
}

// Discards what shadow chunks hold, but for a content that some rank has not stepped: it stays
// shared, and a rank that writes its shadow chunk gets another entry.
void EngineState::DiscardShadows(Job& job, const std::set<ChunkId>& shadows) {
  std::set<ChunkIndex> discarded;
  for (const ChunkId id : shadows) {
    const ChunkIndex index = *Find(job, id);
    const std::vector<Name>& names = job.names.NamesOf(index);
    const bool all = std::all_of(names.begin(), names.end(), [&shadows](const Name& name) {
      return shadows.count(name.id) > 0;
    });
    // A lease that was left behind keeps it, too.
    const bool in_use = chunks_[index].pinned() || !chunks_[index].evicts.empty();
    if (all && !in_use && discarded.insert(index).second) Discard(index);
  }
}

void EngineState::RefuseCommits(Job& job, const absl::Status& why) {
  for (const WaitingCommit& commit : std::exchange(job.commits, {})) {
    Refuse(commit.call.call, why);
  }
}

// The session of a rank ends. The others go on without it, as they would without memtide.
void EngineState::LeaveRanks(Session& session) {
  Job& job = *session.job;
  RefuseCommit(job, session.id, absl::UnavailableError("the session ended"));
  if (!job.names.Shares(session.id)) return;
  job.names.RemoveShared(session.id);
  TryCommitTogether(job);
}

}  // namespace memtide

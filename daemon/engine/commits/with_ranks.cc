// Commits of several ranks in one event: of those that share contents, or of all (kept_ranks.cc).
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/engine/commits/commits.h"

namespace memtide {

namespace {

// How long a commit waits for a rank. Ranks reduce their gradients together, so they come together.
constexpr Duration kPatience = std::chrono::seconds(5);

absl::Status CheckNotLeftBehind(const Session& session, ChunkId chunk, ChunkId shadow) {
  const LeftBehind& left = session.left_behind;
  if (!left.Has(chunk) && !left.Has(shadow)) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("chunk ", chunk.value(),
                                         " or its shadow chunk is leased; release it and try "
                                         "again"));
}

}  // namespace

void Commits::CommitWithRanks(Job& job, const CommitCall& event) {
  const Duration most = core_.options.limits.max_wait;
  job.commits.push_back(
      {event, core_.now + (event.with_all_ranks ? most : std::min(kPatience, most))});
  TryCommitTogether(job);
}

// Ends the commit of this session that waits, if there is one.
void Commits::RefuseCommit(Job& job, SessionId session, const absl::Status& why) {
  const auto waiting = FindCommit(job, session);
  if (waiting == job.commits.end()) return;
  core_.Refuse(waiting->call.call, why);
  job.commits.erase(waiting);
}

std::vector<WaitingCommit>::iterator Commits::FindCommit(Job& job, SessionId session) {
  return std::find_if(
      job.commits.begin(), job.commits.end(),
      [session](const WaitingCommit& commit) { return commit.call.session == session; });
}

void Commits::TryCommitTogether(Job& job) {
  std::map<SessionId, Sharers> known;
  for (size_t i = 0; i < job.commits.size();) {
    const std::set<SessionId> ranks = RanksOf(job, job.commits[i].call.session, &known);
    if (ranks.empty()) {
      ++i;
      continue;
    }
    std::vector<WaitingCommit> commits, others;
    for (WaitingCommit& commit : job.commits) {
      (ranks.count(commit.call.session) > 0 ? commits : others).push_back(std::move(commit));
    }
    job.commits = std::move(others);
    CommitTogether(job, commits);
    known.clear();
    i = 0;
  }
}

Commits::Sharers Commits::SharersOf(Job& job, const CommitCall& call) {
  Sharers sharers;
  std::set<SessionId> seen = {call.session};
  for (const std::vector<ChunkId>* const ids : {&call.chunks, &call.shadows}) {
    for (const ChunkId id : *ids) {
      const absl::optional<ChunkIndex> index = core_.ids.Find(job, id);
      if (!index.has_value()) continue;
      for (const Name& name : job.names.NamesOf(*index)) {
        if (!seen.insert(name.owner).second) continue;
        const auto others = FindCommit(job, name.owner);
        if (others != job.commits.end()) {
          // One with all ranks waits for this rank.
          if (!others->call.with_all_ranks) sharers.called.push_back(name.owner);
          continue;
        }
        const Session* const other = core_.sessions.Find(name.owner);
        const bool is_behind = other != nullptr && other->committed_step < call.step;
        sharers.lack_one |= is_behind && !other->missed_a_commit;
      }
    }
  }
  return sharers;
}

// The ranks that commit in one event with this one: itself, and those that have called and share
// what one of them commits. Empty: one that has not called, and is behind, shares it.
std::set<SessionId> Commits::RanksOf(Job& job, SessionId first,
                                     std::map<SessionId, Sharers>* known) {
  if (FindCommit(job, first)->call.with_all_ranks) return AllRanks(job);
  std::set<SessionId> ranks = {first};
  std::vector<SessionId> to_follow = {first};
  while (!to_follow.empty()) {
    const SessionId id = to_follow.back();
    to_follow.pop_back();
    auto sharers = known->find(id);
    if (sharers == known->end()) {
      sharers = known->emplace(id, SharersOf(job, FindCommit(job, id)->call)).first;
    }
    if (sharers->second.lack_one) return {};
    for (const SessionId other : sharers->second.called) {
      if (ranks.insert(other).second) to_follow.push_back(other);
    }
  }
  return ranks;
}

// A rank may share a content that it does not step, or not as often as others, and wait for them
// elsewhere. So a commit waits for a time only, and not again before the ranks have come together.
void Commits::EndWaitForRanks(Job& job) {
  EndWaitForAllRanks(job);
  const bool is_late =
      std::any_of(job.commits.begin(), job.commits.end(),
                  [this](const WaitingCommit& each) { return core_.now >= each.deadline; });
  if (!is_late) return;
  for (const SessionId id : job.sessions) {
    if (FindCommit(job, id) == job.commits.end()) {
      core_.sessions.Find(id)->missed_a_commit = true;
    }
  }
  TryCommitTogether(job);
}

// Commits steps of several ranks, all of them or none.
void Commits::CommitTogether(Job& job, const std::vector<WaitingCommit>& commits) {
  absl::Status status;
  std::map<std::pair<ChunkIndex, ChunkIndex>, std::vector<CommittedIds>> pairs;
  std::map<SessionId, std::set<ChunkIndex>> awaited;
  Bytes grown;
  for (const WaitingCommit& commit : commits) {
    const CommitCall& call = commit.call;
    const Session& session = *core_.sessions.Find(call.session);
    awaited[session.id] = Calls::Awaited(session);
    status.Update(CheckManifest(session, call, &grown));
    if (!job.keeps_ranks()) grown = Bytes(0);  // The job has the manifest of the last one alone.
    for (size_t i = 0; status.ok() && i < call.chunks.size(); ++i) {
      const absl::optional<ChunkIndex> chunk = core_.ids.Find(job, call.chunks[i]);
      const absl::optional<ChunkIndex> shadow = core_.ids.Find(job, call.shadows[i]);
      if (!chunk.has_value() || !shadow.has_value()) {
        status = absl::NotFoundError(absl::StrCat(
            "chunk ", call.chunks[i].value(), " or its shadow chunk was freed while its commit ",
            "waited; commit the step without it"));
        continue;
      }
      status = CheckNotLeftBehind(session, call.chunks[i], call.shadows[i]);
      if (status.ok()) status = CheckUnwritten(call, i, core_.chunks[*chunk]);
      pairs[{*chunk, *shadow}].push_back({call.session, call.chunks[i], call.shadows[i]});
    }
  }
  for (const auto& [entries, ids] : pairs) {
    const auto [chunk, shadow] = entries;
    if (status.ok() &&
        (IsInUse(job, chunk, shadow, ids, awaited) || IsInUse(job, shadow, chunk, ids, awaited))) {
      status = absl::AbortedError(absl::StrCat("chunk ", ids.front().chunk.value(),
                                               " or its shadow chunk is in use; release it and ",
                                               "try again"));
    }
  }
  if (!status.ok()) {
    for (const WaitingCommit& commit : commits) core_.Refuse(commit.call.call, status);
    return;
  }

  std::set<ChunkId> shadows;
  for (const WaitingCommit& commit : commits) {
    const CommitCall& call = commit.call;
    if (!call.keep_old_content) shadows.insert(call.shadows.begin(), call.shadows.end());
  }
  for (const auto& [entries, ids] : pairs) {
    const bool is_kept = shadows.count(ids.front().shadow) == 0;
    ExchangeContents(job, entries.first, entries.second, ids, is_kept);
  }
  DiscardShadows(job, shadows);
  for (const WaitingCommit& commit : commits) {
    Session& session = *core_.sessions.Find(commit.call.session);
    NoteCommit(job, session, commit.call);
    if (commits.size() > 1) session.missed_a_commit = false;
  }
  rank_contents_.ForgetLostResults(job);
  // A snapshot that the first of them begins has the step of all.
  for (const WaitingCommit& commit : commits) records_.AnswerCommit(job, commit.call);
}

bool Commits::IsLeftBehind(ChunkIndex index) const {
  const std::vector<Pin>& pins = core_.chunks[index].uses().pins;
  return std::any_of(pins.begin(), pins.end(), [this, index](const Pin& pin) {
    const Session* const holder = core_.sessions.Find(pin.session);  // nullptr: a step part's pin.
    return holder != nullptr && holder->left_behind.IdOf(index).has_value();
  });
}

// Whether all ids of both entries are committed, so that what the entries hold may be exchanged. It
// stays where a rank that has written since has left its lease for reading.
bool Commits::CommitsAllOf(const Job& job, ChunkIndex a, ChunkIndex b,
                           const std::vector<CommittedIds>& ids) const {
  if (IsLeftBehind(a) || IsLeftBehind(b)) return false;
  const auto names = [&job](ChunkIndex index) {
    return std::max<size_t>(1, job.names.NamesOf(index).size());
  };
  return names(a) == ids.size() && names(b) == ids.size();
}

// Whether a lease, or a call that waits, stands against a commit of `index` with `other`. Leases
// and calls of other sessions do not, where only ids change the entry that they name. `awaited`: by
// the sessions of `ids`, the entries that their calls wait for.
bool Commits::IsInUse(const Job& job, ChunkIndex index, ChunkIndex other,
                      const std::vector<CommittedIds>& ids,
                      const std::map<SessionId, std::set<ChunkIndex>>& awaited) {
  Chunk& chunk = core_.chunks[index];
  if (CommitsAllOf(job, index, other, ids)) {
    return chunk.pinned() || !chunk.uses().evicts.empty() ||
           job.waiting.NextNaming(index, 0) != nullptr;
  }
  return std::any_of(ids.begin(), ids.end(), [&](const CommittedIds& each) {
    const bool is_pinned = std::any_of(
        chunk.uses().pins.begin(), chunk.uses().pins.end(), [this, &each](const Pin& pin) {
          const RunningStep* const step = calls_.FindStep(StepId(pin.session.value()));
          return pin.session == each.session ||
                 (step != nullptr && (step->owner == each.session || pin.access == Access::kWrite));
        });
    return is_pinned || awaited.at(each.session).count(index) > 0;
  });
}

// Some ranks commit the same pair of entries, by these ids. `keeps_old`: the shadow chunk keeps the
// old content, and is a shadow no more.
void Commits::ExchangeContents(Job& job, ChunkIndex chunk, ChunkIndex shadow,
                               const std::vector<CommittedIds>& ids, bool keeps_old) {
  residency_.UnlinkShadow(chunk);
  residency_.UnlinkShadow(shadow);
  // Predictions stay with the ids.
  if (CommitsAllOf(job, chunk, shadow, ids)) {
    residency_.SwapContents(chunk, shadow);
    rank_contents_.ResultMoved(shadow, chunk);
    if (!keeps_old) residency_.LinkShadow(chunk, shadow);
    return;
  }
  core_.MarkDirty(chunk);
  core_.MarkDirty(shadow);
  for (const CommittedIds& each : ids) {
    job.names.Exchange(core_.ids.NameOf(job, each.chunk, chunk), chunk, core_.ids.OwnName(chunk),
                       core_.ids.NameOf(job, each.shadow, shadow), shadow,
                       core_.ids.OwnName(shadow));
  }
}

// Discards what shadow chunks hold, but for a content that some rank has not stepped: it stays
// shared, and a rank that writes its shadow chunk gets another entry.
void Commits::DiscardShadows(Job& job, const std::set<ChunkId>& shadows) {
  std::set<ChunkIndex> discarded;
  for (const ChunkId id : shadows) {
    const ChunkIndex index = *core_.ids.Find(job, id);
    const std::vector<Name>& names = job.names.NamesOf(index);
    const bool all = std::all_of(names.begin(), names.end(), [&shadows](const Name& name) {
      return shadows.count(name.id) > 0;
    });
    // A lease that was left behind keeps it, too.
    const bool in_use = core_.chunks[index].pinned() || !core_.chunks[index].uses().evicts.empty();
    if (all && !in_use && discarded.insert(index).second) residency_.Discard(index);
  }
}

// The session of a rank ends. The others go on without it, as they would without memtide, unless it
// is kept for its next session.
void Commits::LeaveRanks(Session& session) {
  Job& job = *session.job;
  RefuseCommit(job, session.id, absl::UnavailableError("the session ended"));
  if (job.keeps_ranks()) {
    RankHasEnded(job, session);
  } else {
    job.names.RemoveShared(session.id);
  }
  TryCommitTogether(job);
}

void Commits::On(const CommitsPossible& signal) {
  Job* const job = core_.FindJob(signal.job);
  if (job == nullptr) return;
  job->tries_commits = false;
  TryCommitTogether(*job);
}

}  // namespace memtide

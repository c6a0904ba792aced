// Ranks of a job with a time to live: each of them is kept when its session ends, with its chunks,
// what it shares and its last commit, and its next session goes on with these (decision 38). A
// commit is of all ranks or of none, so that all of them are at the same step whatever dies.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "daemon/engine/commits/commits.h"

namespace memtide {

// All ranks, if each of them waits to commit with the others; none otherwise.
std::set<SessionId> Commits::AllRanks(const Job& job) {
  std::set<SessionId> ranks;
  for (const WaitingCommit& commit : job.commits) {
    if (commit.call.with_all_ranks) ranks.insert(commit.call.session);
  }
  return ranks.size() == job.ranks ? ranks : std::set<SessionId>();
}

absl::Status Commits::RankEnded(const std::string& name, uint32_t rank) {
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", rank, " of job \"", name, "\" has ended, and ranks commit each ",
                   "step together: start all of them again, to go on from the last step"));
}

// No step can be committed with the rank any more, before all ranks have new sessions.
void Commits::RankHasEnded(Job& job, const Session& session) {
  for (const SessionId id : job.sessions) {
    if (id == session.id) continue;
    core_.sessions.Find(id)->lost_rank = session.rank;
    const auto waiting = FindCommit(job, id);
    if (waiting == job.commits.end() || !waiting->call.with_all_ranks) continue;
    RefuseCommit(job, id, RankEnded(job.name, session.rank));
  }
}

void Commits::EndWaitForAllRanks(Job& job) {
  const bool is_late =
      std::any_of(job.commits.begin(), job.commits.end(), [this](const WaitingCommit& each) {
        return core_.now >= each.deadline && each.call.with_all_ranks;
      });
  if (!is_late) return;
  std::vector<SessionId> waiting;
  for (const WaitingCommit& commit : job.commits) {
    if (commit.call.with_all_ranks) waiting.push_back(commit.call.session);
  }
  const Session& first = *core_.sessions.Find(waiting.front());
  const uint32_t ranks = first.group.empty() ? job.ranks : first.group_ranks;
  std::set<uint32_t> lacking;
  for (uint32_t rank = 0; rank < ranks; ++rank) lacking.insert(rank);
  for (const SessionId id : waiting) lacking.erase(core_.sessions.Find(id)->rank);
  if (!first.group.empty()) {
    for (Session* const rank : GroupOf(first)) {
      const bool waits =
          rank->job != nullptr && FindCommit(*rank->job, rank->id) != rank->job->commits.end();
      if (waits) lacking.erase(rank->rank);
    }
  }
  const absl::Status why = absl::DeadlineExceededError(absl::StrCat(
      "of job \"", first.group.empty() ? job.name : first.group, "\", ranks ",
      absl::StrJoin(lacking, ", "),
      " did not commit a step in time, and ranks commit each step together: let all of them step ",
      "equally often, or train without a job's name"));
  for (const SessionId id : waiting) {
    ++core_.counters.deadlines_exceeded;
    RefuseCommit(job, id, why);
  }
}

}  // namespace memtide

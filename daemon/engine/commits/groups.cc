// Groups: the ranks of a training that have a job each, as their chunks are leased at a device
// each. Their commits are one event, and one record, so that all of them are at the same step
// whatever dies, as are the ranks that are one job (kept_ranks.cc).
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/engine/commits/commits.h"

namespace memtide {

// The sessions of the group, this one included, that have opened their jobs or are about to.
std::vector<Session*> Commits::GroupOf(const Session& session) {
  std::vector<Session*> ranks;
  std::vector<SessionId> ids;
  for (const auto& [id, other] : core_.sessions) {
    const bool is_open = other.job != nullptr || other.opening;
    if (is_open && other.uid == session.uid && other.group == session.group) ids.push_back(id);
  }
  for (const SessionId id : ids) ranks.push_back(core_.sessions.Find(id));
  return ranks;
}

absl::Status Commits::CheckGroup(const Session& session, const OpenCall& event) const {
  if (event.group.empty()) return absl::OkStatus();
  if (event.ranks > 0 || event.job_name.empty() || event.time_to_live == Duration(0) ||
      event.group_rank >= event.group_ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", event.group_rank, " of ", event.group_ranks, " in group \"", event.group,
        "\": the ranks of a group have a named job each, with a time to live, and each a number ",
        "below their count"));
  }
  if (event.durable_every > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group \"", event.group,
        "\": ranks with a device each cannot have durable jobs; leave out --durable, or "
        "start memtided with --device=none"));
  }
  for (const auto& [id, other] : core_.sessions) {
    const bool is_open = other.job != nullptr || other.opening;
    if (!is_open || other.uid != session.uid || other.group != event.group) continue;
    if (other.group_ranks != event.group_ranks) {
      return absl::FailedPreconditionError(absl::StrCat("group \"", event.group, "\" has ",
                                                        other.group_ranks, " ranks, not ",
                                                        event.group_ranks));
    }
    if (other.rank != event.group_rank) continue;
    return absl::FailedPreconditionError(absl::StrCat("rank ", event.group_rank, " of group \"",
                                                      event.group,
                                                      "\" is there already, as another process"));
  }
  return absl::OkStatus();
}

void Commits::SetRank(Session& session, const OpenCall& event) {
  session.group = event.group;
  session.group_ranks = event.group_ranks;
  session.rank = event.group.empty() ? event.rank : event.group_rank;
}

// The session has opened its job. One that has committed nothing yet is at the step of all ranks,
// as this one is: what it has lost was the rank's session before.
void Commits::JoinGroup(Session& session) {
  if (session.group.empty()) return;
  for (Session* const other : GroupOf(session)) {
    const bool is_new = other->committed_step == other->opened_at_step;
    if (is_new && other->lost_rank == session.rank) other->lost_rank.reset();
  }
}

// No step can be committed with the rank any more, before all ranks have new sessions.
void Commits::LeaveGroup(Session& session) {
  if (session.group.empty() || session.job == nullptr) return;
  for (Session* const other : GroupOf(session)) {
    if (other == &session || other->job == nullptr) continue;
    other->lost_rank = session.rank;
    RefuseCommit(*other->job, other->id, RankEnded(session.group, session.rank));
  }
}

void Commits::CommitWithGroup(Session& session, const CommitCall& event) {
  session.job->commits.push_back({event, core_.now + core_.options.limits.max_wait});
  const std::vector<Session*> ranks = GroupOf(session);
  const bool all_wait =
      ranks.size() == session.group_ranks &&
      std::all_of(ranks.begin(), ranks.end(), [this](Session* rank) {
        return rank->job != nullptr && FindCommit(*rank->job, rank->id) != rank->job->commits.end();
      });
  if (all_wait) CommitGroup(ranks);
}

// All or none: what one of them commits may be in use since it has called, another session may have
// committed its job's step, and the manifests of all may be too large together.
void Commits::CommitGroup(const std::vector<Session*>& ranks) {
  std::vector<CommitCall> calls;
  std::vector<std::vector<ChunkIndex>> indices;
  absl::Status status;
  Bytes grown;
  std::set<const Job*> jobs;
  for (Session* const rank : ranks) {
    if (!jobs.insert(rank->job).second) {
      status.Update(absl::FailedPreconditionError(
          absl::StrCat("two ranks of group \"", rank->group, "\" have job \"", rank->job->name,
                       "\" open: each has a job of its own")));
    }
    const auto waiting = FindCommit(*rank->job, rank->id);
    calls.push_back(std::move(waiting->call));
    rank->job->commits.erase(waiting);
    status.Update(CheckCommit(*rank, calls.back(), &grown));
    absl::StatusOr<std::vector<ChunkIndex>> found =
        ResolveCommitted(*rank, calls.back(), /*together=*/false);
    status.Update(found.status());
    if (found.ok()) indices.push_back(*std::move(found));
  }
  for (size_t i = 0; status.ok() && i < ranks.size(); ++i) {
    CarryOut(*ranks[i], calls[i], indices[i]);
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!status.ok()) {
      core_.Refuse(calls[i].call, status);
      continue;
    }
    rank_contents_.ForgetLostResults(*ranks[i]->job);
    records_.AnswerCommit(*ranks[i]->job, calls[i]);
  }
}

}  // namespace memtide

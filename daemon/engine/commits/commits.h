// Commits: an optimizer step becomes the state of its job in one event, alone or with other ranks.
// Engine-internal.
#ifndef MEMTIDE_DAEMON_ENGINE_COMMITS_COMMITS_H_
#define MEMTIDE_DAEMON_ENGINE_COMMITS_COMMITS_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/engine/calls/calls.h"
#include "daemon/engine/core.h"
#include "daemon/engine/records/records.h"
#include "daemon/engine/residency/residency.h"
#include "daemon/engine/sharing/offers.h"
#include "daemon/engine/sharing/rank_contents.h"

namespace memtide {

class Commits {
 public:
  Commits(Core& core, Residency& residency, Calls& calls, Offers& offers, RankContents& contents,
          Records& records)
      : core_(core),
        residency_(residency),
        calls_(calls),
        offers_(offers),
        rank_contents_(contents),
        records_(records) {}

  // Ends the waiting of commits whose ranks did not come in time: a commit with all ranks fails,
  // and the others go on without the ranks that lack.
  void EndWaitForRanks(Job& job);
  // Refuses the commit of a session that ends, and the ranks of its job go on without it; if they
  // are kept, they cannot commit before the rank has a new session. REQUIRES: it has a job.
  void LeaveRanks(Session& session);
  // Returns why the session cannot open its job as this rank of the group; OK also without a group.
  absl::Status CheckGroup(const Session& session, const OpenCall& event) const;
  // Gives the session its rank and group, before it opens its job.
  static void SetRank(Session& session, const OpenCall& event);
  // The session has opened its job: the group's sessions that have committed nothing yet may commit
  // with it. Does nothing for a session without a group, as LeaveGroup().
  void JoinGroup(Session& session);
  // The session ends: no other one of its group commits before all its ranks have new sessions.
  void LeaveGroup(Session& session);
  // Commits a step at once, or when the ranks that share its chunks or are to commit with it have
  // called. A commit of several ranks is of all or of none.
  void On(const CommitCall& event);
  // Carries out the commits of the job that wait for no rank any more.
  void On(const CommitsPossible& signal);

 private:
  // The other ranks that share what one commits.
  struct Sharers {
    std::vector<SessionId> called;  // Their commits wait, too.
    bool lack_one = false;          // One that is behind has not called.
  };
  struct CommittedIds {
    SessionId session;
    ChunkId chunk, shadow;
  };

  // Carries out each commit that waits, with those of the ranks that share what it commits, when
  // all of these ranks have called.
  void TryCommitTogether(Job& job);
  void CommitWithRanks(Job& job, const CommitCall& event);
  void RefuseCommit(Job& job, SessionId session, const absl::Status& why);
  std::vector<WaitingCommit>::iterator FindCommit(Job& job, SessionId session);
  Sharers SharersOf(Job& job, const CommitCall& call);
  std::set<SessionId> RanksOf(Job& job, SessionId first, std::map<SessionId, Sharers>* known);
  void CommitTogether(Job& job, const std::vector<WaitingCommit>& commits);
  bool IsLeftBehind(ChunkIndex index) const;
  bool CommitsAllOf(const Job& job, ChunkIndex a, ChunkIndex b,
                    const std::vector<CommittedIds>& ids) const;
  bool IsInUse(const Job& job, ChunkIndex index, ChunkIndex other,
               const std::vector<CommittedIds>& ids,
               const std::map<SessionId, std::set<ChunkIndex>>& awaited);
  void ExchangeContents(Job& job, ChunkIndex chunk, ChunkIndex shadow,
                        const std::vector<CommittedIds>& ids, bool keeps_old);
  void DiscardShadows(Job& job, const std::set<ChunkId>& shadows);
  std::vector<Session*> GroupOf(const Session& session);
  void CommitWithGroup(Session& session, const CommitCall& event);
  void CommitGroup(const std::vector<Session*>& ranks);
  std::set<SessionId> AllRanks(const Job& job);
  void RankHasEnded(Job& job, const Session& session);
  static absl::Status RankEnded(const std::string& name, uint32_t rank);
  void EndWaitForAllRanks(Job& job);
  void NoteCommit(Job& job, Session& session, const CommitCall& call);
  // The number of the last committed step, to which the session's next one adds 1.
  static uint64_t LastStep(const Session& session);
  // `grown`: see CheckManifest().
  absl::Status CheckCommit(const Session& session, const CommitCall& event, Bytes* grown) const;
  // ABORTED: chunks[i] was written since the caller read its version.
  static absl::Status CheckUnwritten(const CommitCall& event, size_t i, const Chunk& chunk);
  absl::StatusOr<std::vector<ChunkIndex>> ResolveCommitted(const Session& session,
                                                           const CommitCall& event, bool together);
  void CarryOut(Session& session, const CommitCall& event, const std::vector<ChunkIndex>& indices);
  absl::Status CheckManifest(const Session& session, const CommitCall& event, Bytes* grown) const;

  Core& core_;
  Residency& residency_;
  Calls& calls_;
  Offers& offers_;
  RankContents& rank_contents_;
  Records& records_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_COMMITS_COMMITS_H_

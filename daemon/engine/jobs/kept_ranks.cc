#include "daemon/engine/jobs/jobs.h"

namespace memtide {

// The session is the rank's from now on. REQUIRES: the rank has no other session.
void Jobs::TakePlaceOfRank(Job& job, Session& session) {
  KeptRank& rank = job.kept_ranks[session.rank];
  for (const ChunkIndex index : job.members.chunks()) {
    Chunk& chunk = core_.chunks[index];
    if (chunk.live() && chunk.owner == rank.session) chunk.owner = session.id;
  }
  job.names.ChangeOwner(rank.session, session.id);
  rank.session = session.id;
  // A session that has committed nothing yet is at the step of all ranks, as this one is: what it
  // has lost was the rank's session before.
  for (const SessionId id : job.sessions) {
    Session& other = *core_.sessions.Find(id);
    const bool is_new = other.committed_step == other.opened_at_step;
    if (is_new && other.lost_rank == session.rank) other.lost_rank.reset();
  }
}

}  // namespace memtide

// RankContents: which entry of the chunk table an id names where ranks share contents, and the copy
// that a session gets before it writes an entry that others read. Engine-internal.
//
// An entry is shared if several ids name it, or if its content is common (sharing/offers.h). Ranks
// that want the same step part make it once (tables/shared_parts.h): the ids of the others come to
// name its results.
#ifndef MEMTIDE_DAEMON_ENGINE_SHARING_RANK_CONTENTS_H_
#define MEMTIDE_DAEMON_ENGINE_SHARING_RANK_CONTENTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/engine/calls/calls.h"
#include "daemon/engine/core.h"
#include "daemon/engine/memory/memory.h"
#include "daemon/engine/residency/residency.h"
#include "daemon/engine/sharing/offers.h"

namespace memtide {

class RankContents {
 public:
  RankContents(Core& core, Memory& memory, Residency& residency, Calls& calls, Offers& offers)
      : core_(core), memory_(memory), residency_(residency), calls_(calls), offers_(offers) {}

  // Replaces each entry in `indices` that is `wanted` by a new one without its bytes, which the
  // session's id names from now on: a step writes all of it. Nothing is changed if there is no room
  // (as TakeHomes()), or, ABORTED, if the session uses such an entry. `may_be_leased`: its lease
  // stays with the entry.
  absl::Status GiveOwnEntries(Session& session, const std::vector<ChunkId>& ids,
                              const std::vector<bool>& wanted, bool may_be_leased,
                              std::vector<ChunkIndex>* indices);
  // Copies the shared contents that the call writes, in a step part of the daemon, and then makes
  // the call again, which finds entries of its own. REQUIRES: `indices` are the call's chunks.
  void Unshare(Session& session, const FetchCall& event, const std::vector<ChunkIndex>& indices);
  // The part that copies has ended.
  void EndUnsharing(const Unsharing& unsharing, const absl::Status& status);
  // Ends the session's lease of the entry that its id named before, if it still has one.
  void ReleaseLeftBehind(Session& session, ChunkId id);
  // Ends one id of an entry that others name, too. REQUIRES: no call of the session waits for it.
  void FreeId(Session& session, ChunkId id, ChunkIndex index);
  // Some ids of the job name other entries, or none, so that commits which wait may be possible.
  void IdsChanged(Job& job);
  // Frees the entries that only ranks which have ended could use. Another rank may still read what
  // its id named before; then the next Tick tries again.
  void FreeOrphans(Job& job);
  // Takes the homes that a write at the device needs: one for each chunk whose content is common.
  // The copy at the device becomes the chunk's own content when the lease is granted, because
  // kernels may be reading there. RESOURCE_EXHAUSTED: the home tier has no free slot. UNAVAILABLE
  // and to be called again: memory with more slots is being made, or a copy is being compared.
  absl::StatusOr<std::vector<Home>> TakeHomes(Job& job, const std::vector<ChunkIndex>& indices);

  // Commits a chunk whose content is common, and a shadow chunk that has its own: the chunk gets
  // that, and the shadow chunk the common content, or nothing unless `keep_old`. False: the job has
  // no slot for a home of the shadow chunk, the common content is being copied and might end, or
  // the two are no such pair, and nothing is changed.
  bool TakeFromShadow(Job& job, ChunkIndex chunk, ChunkIndex shadow, bool keep_old);
  // Commits the nth pair of the call, one of which is shared: the two ids exchange what they name.
  // REQUIRES: these are its entries.
  void ExchangeNames(Job& job, const CommitCall& event, size_t nth, ChunkIndex chunk,
                     ChunkIndex shadow);
  // The content of `from` is in `to` since a commit: if it was the result of a part, ranks that are
  // late find it there.
  void ResultMoved(ChunkIndex from, ChunkIndex to);
  // Forgets the parts whose results were written over.
  void ForgetLostResults(Job& job);

  // True: the call has been answered, or waits for another rank. False: the session makes the part,
  // into the entries that `indices` has then; `difference` is to a part of the same elements that
  // another rank makes. REQUIRES: the job's ranks share contents, and event.contents is set.
  bool SharePart(Session& session, const StepCall& event, std::vector<ChunkIndex>* indices,
                 absl::optional<PartDifference>* difference);
  // A part of the session has ended, or never began. Calls that wait for it are answered, or made
  // again (StepAgain) unless it was `computed` and its results are there.
  void PartEnded(Job& job, SessionId maker, uint64_t number, bool computed);
  // Answers the session's calls that wait for parts of other ranks with the error.
  void EndWaitingParts(Session& session, const absl::Status& why);

  // Ends a call that waits, and with it its part. The waiter is gone afterwards.
  void Fail(Waiter& waiter, const absl::Status& status);
  void On(const PartFailed& signal);

 private:
  void MoveId(Job& job, ChunkId id, ChunkIndex from, ChunkIndex to);
  absl::StatusOr<Home> TakeHome(Job& job, ChunkIndex shared);
  absl::StatusOr<ChunkIndex> MakeEntry(Job& job, ChunkIndex like);
  bool IsOrphan(ChunkIndex index) const;
  absl::Status TakeResults(Job& job, const StepCall& event, const std::vector<ChunkIndex>& results);
  // The part is made, or another session makes it. `count`: the chunks of the call.
  void AnswerOrWait(Session& session, const StepCall& event, SharedPart& part, size_t count);
  void AnswerMade(const StepCall& event, const std::vector<ChunkIndex>& results);
  void DropCopies(const Unsharing& unsharing);

  Core& core_;
  Memory& memory_;
  Residency& residency_;
  Calls& calls_;
  Offers& offers_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_SHARING_RANK_CONTENTS_H_

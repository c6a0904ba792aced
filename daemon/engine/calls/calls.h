// Calls: the calls about chunks that wait for leases or room: allocations, fetches, step parts and
// evictions, until their answer, and the leases that they grant. Engine-internal.
#ifndef MEMTIDE_DAEMON_ENGINE_CALLS_CALLS_H_
#define MEMTIDE_DAEMON_ENGINE_CALLS_CALLS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/engine/core.h"
#include "daemon/engine/errors.h"
#include "daemon/engine/memory/memory.h"
#include "daemon/engine/residency/prefetcher.h"
#include "daemon/engine/residency/residency.h"
#include "daemon/engine/residency/victims.h"

namespace memtide {

class Calls {
 public:
  Calls(Core& core, Memory& memory, Victims& victims, Residency& residency, Prefetcher& prefetcher)
      : core_(core),
        memory_(memory),
        victims_(victims),
        residency_(residency),
        prefetcher_(prefetcher) {}

  void On(const AllocateCall& event);
  // Serves waiting allocations as far as the home tier has memory.
  void AllocateWaiting(Job& job);
  // Whether the job may claim that many more slots of host memory. nullopt: when memory is made.
  absl::optional<absl::Status> TryClaim(const Job& job, uint32_t count) const;
  void On(const AllocationsPossible& signal);
  void On(const NoMemoryForChunks& signal);
  // Ends the chunk, and all that is pending for it: calls that name it fail. Its slots stay as long
  // as a transfer or a step uses them. REQUIRES: it is live.
  void FreeChunk(ChunkIndex index);
  // Frees the chunks that end with the job's last session, or those of them that `owner` has.
  void FreeTransient(Job& job, absl::optional<SessionId> owner = absl::nullopt);
  // Ends a call that waits: undoes what its admission did, and answers it with the error. The
  // waiter is gone afterwards. Returns its step part, which the caller ends. RankContents::Fail()
  // does that at once, and calls which end here do it by a signal.
  [[nodiscard]] PartFailed Cancel(Waiter& waiter, const absl::Status& status);
  // Ends the session's lease of the chunk, if there is one: a FetchCall or EvictCall may name
  // leases that have ended.
  void ReleaseLease(Session& session, ChunkIndex index);
  // The entries that fetches and step parts of the session name which are not granted.
  static std::set<ChunkIndex> Awaited(const Session& session);
  // Whether a step part of the session that runs has the entry pinned.
  bool IsInPart(const Session& session, ChunkIndex index) const;
  // Whether no lease, part or eviction uses the entry, and no call waits for it.
  bool IsUnused(ChunkIndex index) const;
  // The fetch or step that waits; nullptr: there is none with this id.
  Waiter* FindWaiter(CallId call);
  // The step part that runs; nullptr: there is none with this id.
  const RunningStep* FindStep(StepId id) const;
  // The fetches, evictions and step parts that have not ended.
  size_t pending() const { return waiters_.size() + evicts_.size() + steps_.size(); }
  // Whether one more call of the session may wait, which names that number of chunks.
  absl::Status CheckWaiting(const Session& session, size_t chunks) const;
  // Admits waiting calls at the tier, the oldest first, where leases have ended or there is room.
  void AdmitWaiting(Job& job, Tier tier);
  // Fails the waiting calls that name the chunk: all, or only those that read it.
  void FailNaming(ChunkIndex index, bool only_readers, const absl::Status& why);
  void On(const TierShrunk& signal);
  void On(const PromotionFailed& signal);
  void On(const LeasesInTheWay& signal);
  // The session's part of this number that runs; nullopt: none does.
  static absl::optional<StepId> RunningPart(const Session& session, uint64_t part);
  // The fetch waits for its chunks, and grants leases of them. `homes`: as in Waiter.
  // REQUIRES: CheckWaiting() of the session is OK, as for the other calls that wait.
  void Wait(Session& session, const FetchCall& event, std::vector<ChunkIndex> chunks,
            std::vector<Home> homes);
  // The eviction waits until its chunks have left. REQUIRES: none of them is pinned.
  void Wait(Session& session, const EvictCall& event, std::vector<ChunkIndex> chunks);
  // The part waits for its chunks, of which those from `first_written` on are written, and runs.
  void Wait(Session& session, CallId call, std::vector<ChunkIndex> chunks, size_t first_written,
            RunStep run, Duration deadline);
  // Gives up the pins of a part, and discards what it has written unless `status` is OK.
  // REQUIRES: it runs.
  RunningStep EndStep(StepId id, const absl::Status& status);
  // The chunk has reached the tier of the calls that wait for it.
  void ProceedWaiters(ChunkIndex index);
  // The chunk has left, or has been leased before.
  void FinishEvicts(ChunkIndex index);
  void On(const EvictionFailed& signal);
  // Has the evictions that name the chunk wait for it no more; an error ends them.
  void FinishEvicts(ChunkIndex index, const absl::Status& status);
  // Answers the session's evictions with the error.
  void EndEvicts(const Session& session, const absl::Status& why);
  // The part counts for its session no more, which ends. REQUIRES: it runs.
  void LeavePart(StepId id);
  // The calls whose deadline has passed. Each that still waits is to be ended: a fetch or a step
  // part with the error of WhyLate(), which counts it, and an eviction by ExpireEvict().
  std::set<CallId> LateCalls();
  absl::Status WhyLate(const Waiter& waiter);
  void ExpireEvict(CallId call);
  // The slots that calls of the job have as homes of chunks which are about to leave a content.
  std::vector<SlotNumber> HomesOf(const Job& job) const;
  void CheckSteps() const;
  // Looks at all calls, so that it is none of the pieces of an audit that the daemon makes.
  void CheckInvariants() const;

 private:
  // Answers the call. Its chunks that have not left stay, unless another eviction names them.
  void EndEvict(EvictOperation& evict, const absl::Status& status);
  absl::Status CheckHome(const Job& job, const AllocateCall& event) const;
  // nullopt: the allocation waits for memory that is being made.
  absl::optional<absl::Status> TryAllocate(const Job& job, const AllocateCall& event) const;
  void Allocate(Session& session, Job& job, const AllocateCall& event);
  void UnpinChunk(ChunkIndex index, size_t pin_index);
  void Register(Session& session, PendingCall& call, Duration deadline);
  Verdict Enter(Session& session, std::unique_ptr<Waiter> waiter, Duration deadline);
  // All chunks of the waiter are at its tier.
  void Proceed(Waiter& waiter);
  void Proceed(Waiter& waiter, const GrantLeases& then);
  void Proceed(Waiter& waiter, const RunStep& then);
  // Cancel(), and RankContents hears of the part by a signal.
  void Fail(Waiter& waiter, const absl::Status& status);
  void Leave(Waiter& waiter);
  bool Conflicts(const Chunk& chunk, const Waiter& waiter, Access access) const;
  bool ConflictsWhereItWatches(const Waiter& waiter) const;
  bool Fits(const Waiter& waiter, uint32_t pins) const;
  bool MayFit(const Waiter& waiter) const;
  Verdict TryAdmit(Waiter& waiter, bool may_take_room);
  // The call, which is not admitted, waits until it is or is answered, and leases in its way are
  // revoked. It fails at once if a chunk that it reads is lost.
  void WaitOrFail(Waiter& waiter, const Verdict& verdict);
  absl::Status WhyLate(const PendingCall& call, const std::string& what, absl::Status late);
  void PinChunk(Waiter& waiter, ChunkIndex index, Access access);
  void AdmitOldest(Job& job, Tier tier);
  void AdmitWatching(Job& job, ChunkIndex index);
  Admission TryAgain(Waiter& waiter);
  void SendRevokes(std::map<SessionId, Revoke> revokes);
  void RevokeLeases(Waiter& waiter);
  void RevokeLeasesAgain(Job& job, Tier tier);

  Core& core_;
  Memory& memory_;
  Victims& victims_;
  Residency& residency_;
  Prefetcher& prefetcher_;
  const ChunkTable::WritableUses uses_{core_.chunks};

  std::map<CallId, std::unique_ptr<Waiter>> waiters_;
  std::map<CallId, std::unique_ptr<EvictOperation>> evicts_;
  std::set<std::pair<Instant, CallId>> deadlines_;  // Calls in waiters_ and evicts_ have them.
  std::map<StepId, RunningStep> steps_;
  uint64_t next_step_ = 1;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_CALLS_CALLS_H_

// EngineState: the parts of the engine that have no class of their own yet: memory, the residency
// of chunks, and calls that wait. Engine-internal; engine.h has the contract.
//
// It stands below Sharing, Requests, Records, Commits and Jobs, which call it. It calls none of
// them: what concerns them is a signal (tables/signals.h), which EngineParts hands on.
#ifndef MEMTIDE_DAEMON_ENGINE_STATE_H_
#define MEMTIDE_DAEMON_ENGINE_STATE_H_

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "daemon/engine/core.h"
#include "daemon/engine/errors.h"
#include "daemon/io/stripes.h"

namespace memtide {

class EngineState {
 public:
  explicit EngineState(Core& core) : core_(core) {}

  // --- chunks/quarantined_slots.cc ---
  // Whether kernels of an ended session may still write to the chunk's slot at the device.
  bool InQuarantine(const Chunk& chunk) const;
  // Drops a copy in a quarantined slot that is torn, or that another copy can replace.
  void LeaveQuarantine(ChunkIndex index);
  // Before a write to SSD: the chunk leaves a slot that a snapshot names. False: none is free.
  bool LeaveSnapshotSlot(ChunkIndex index);

  // --- memory/memory.cc ---
  void On(const RegionMade& event);
  void On(const RegionDropped& event);
  void On(const StoreMade& event);
  void On(const StoreDropped& event);
  absl::StatusOr<MemoryKind> DeviceMemory(const OpenCall& event) const;
  void TakeShares(Job& job, std::unique_ptr<JobShares> shares);
  // Makes the next segment of the tier, unless one is being made or the share is used up.
  void Grow(Job& job, Tier tier);
  void SegmentMade(Tier tier, uint32_t segment, const absl::Status& status);
  void NoteStripes(StoreId store, StripeCounts counts);
  void SendRegions(const Job& job, uint32_t region);
  void SegmentDropped(uint32_t segment);
  void MaybeDropMemory(Job& job);

  // --- memory/resize.cc ---
  void On(const ResizeCall& event);
  void On(const ReturnRegionsCall& event);
  absl::Status CheckResize(const Job& job, const ResizeCall& event) const;
  // Gives up free slots beyond the share, and revokes leases beyond it.
  void GiveSurplusBack(Job& job);
  // The region is no slot any more. It is dropped when `holders`, which get SendRegionGone, have
  // returned it.
  void LetGo(Job& job, uint32_t region, std::vector<SessionId> holders);
  void RegionReturned(Job& job, uint32_t region, SessionId session);
  // The session ends, and with it all its mappings.
  void LeaveRegions(Job& job, SessionId session);
  // Answers the waiting resize if no more memory must be given back.
  void FinishResize(Job& job);
  void EndResize(Job& job, const absl::Status& status);
  void ExpireResizes();

  // --- memory/failed_memory.cc ---
  // The memory of the chunk's slot at the device cannot be read any more.
  // True: the content of the chunk is lost.
  bool DeviceMemoryFailed(ChunkIndex index, const absl::Status& why);
  // Gives the slot up: the job has one less.
  void RetireSlot(Job& job, Slot slot);

  // --- memory/exposed_regions.cc ---
  // The process of a session that has ended may still write to the host memory of the job.
  void ExposeRegions(Job& job);
  // Not OK: an Open of the job has to wait until its regions are replaced.
  static absl::Status CheckExposed(const Job& job);
  bool has_exposed() const { return !exposed_.empty(); }
  // Begins to replace the next region that can be.
  void ReplaceExposed();
  bool CanReplace(const Job& job) const;
  // The copy of the job's first exposed region was made, or could not be.
  void RegionCopied(Job& job, const absl::Status& status);

  // --- memory/lost_device.cc ---
  // What the job's chunks have at the device is not there any more.
  void LoseDeviceCopies(Job& job);
  // UNAVAILABLE: the sessions of the job have regions of the device that are lost.
  static absl::Status CheckRegions(const Job& job);

  // --- memory/shares.cc ---
  // Requests `lacking` more slots: from free memory now, otherwise by reclaiming from jobs above
  // their fair share.
  void GrowShare(Job& job, Tier tier, uint32_t lacking, bool may_reclaim = true);
  ShareLedger::Opens WaitingOpens(Pool pool) const;
  ShareLedger::Demands DemandsOf(Tier tier) const;
  // Tells sessions and waiting chunks that a pool of slots has another size.
  void Apply(const ShareLedger::Change& change);
  void Apply(const ShareLedger::Changes& changes);
  // True: memory for the OpenCall is being reclaimed.
  bool ReclaimForOpen(const OpenCall& open, const Owner& owner);
  void On(const SetQuotasCall& event);
  // Elastic shares give back what exceeds a quota, as far as their jobs can do without it.
  void ShrinkOverQuota();
  // Serves starved jobs and waiting OpenCalls with memory that jobs gave back. False: none was.
  bool ServeFreed();

  // --- memory/balloon.cc ---
  void On(const HostMemory& event);
  void On(const SlotReleased& event);
  void On(const SlotPopulated& event);
  // Releases free slots beyond the size of the pool to the machine.
  void ReleaseSurplusSlots(Job& job, Tier tier);
  // Deflates the balloon for chunks that wait for slots while no victim is left.
  void DeflateForWaiting(Job& job, Tier tier);
  // Populates one released slot again.
  void PopulateNextSlot(Job& job);
  // Sends the lease budget of that many slots to one session, or of a share that has changed to all
  // sessions of the job, if they lease there.
  void SendBudget(SessionId session, uint32_t slots, uint32_t most_slots);
  void SendBudgets(const Job& job, const ShareLedger::Change& change);

  // --- chunks/allocate.cc ---
  void On(const AllocateCall& event);
  absl::Status CheckHome(const Job& job, const AllocateCall& event) const;
  // Serves waiting allocations as far as the home tier has memory.
  void AllocateWaiting(Job& job);
  // nullopt: the allocation waits for memory that is being made.
  absl::optional<absl::Status> TryAllocate(const Job& job, const AllocateCall& event) const;
  // The same as TryAllocate for these slots.
  absl::optional<absl::Status> TryClaim(const Job& job, uint32_t count) const;
  void Allocate(Session& session, Job& job, const AllocateCall& event);
  void On(const AllocationsPossible& signal);
  void On(const NoMemoryForChunks& signal);

  // --- chunks/chunks.cc ---
  // REQUIRES: no fetch waits for the chunk.
  void FreeChunk(ChunkIndex index);
  // Frees the chunks that end with the job's last session, or those of them that `owner` has.
  void FreeTransient(Job& job, absl::optional<SessionId> owner = absl::nullopt);
  // Frees the slots of a freed chunk and its index, unless a transfer or step uses them. True:
  // allocations that wait may have their turn.
  bool ForgetChunk(ChunkIndex index);
  void ForgetAfterTransfer(ChunkIndex index);

  // --- chunks/fetch.cc ---
  void UnpinChunk(ChunkIndex index, size_t pin_index);
  // All chunks of the waiter are at its tier.
  void Proceed(Waiter& waiter);
  void Proceed(Waiter& waiter, const GrantLeases& then);
  void Fail(Waiter& waiter, const absl::Status& status);
  // The same, but the caller tells Sharing of the part that has failed.
  PartFailed Undo(Waiter& waiter, const absl::Status& status);

  // --- chunks/common_chunks.cc ---
  void LeaveCommon(Job& job, ChunkIndex index, Slot slot, TierSet valid);
  void LeaveContent(CommonContent& content);

  // --- chunks/fetch.cc, continued ---
  // Adds and removes a fetch or step that is not answered yet.
  void Enter(Session& session, std::unique_ptr<Waiter> waiter);
  void Leave(Waiter& waiter);
  void ReleaseLease(Session& session, ChunkIndex index);
  void MakeNewVersion(ChunkIndex index);

  // --- chunks/admission.cc ---
  absl::Status CheckWaiting(const Session& session, size_t chunks) const;
  Verdict TryAdmit(Waiter& waiter, bool may_take_room);
  bool Conflicts(const Chunk& chunk, const Waiter& waiter, Access access) const;
  bool ConflictsWhereItWatches(const Waiter& waiter) const;
  bool Fits(const Waiter& waiter, uint32_t pins) const;
  bool MayFit(const Waiter& waiter) const;
  void PinChunk(Waiter& waiter, ChunkIndex index, Access access);
  void Expedite(const Chunk& chunk);
  // The call waits until it is admitted or answered; leases in its way are revoked.
  void WaitForAdmission(Waiter& waiter, const Verdict& verdict);
  void AdmitWaiting(Job& job, Tier tier);
  void AdmitOldest(Job& job, Tier tier);
  void AdmitWatching(Job& job, ChunkIndex index);
  Admission TryAgain(Waiter& waiter);
  // Fails the waiting calls that name the chunk: all, or only those that read it.
  void FailNaming(ChunkIndex index, bool only_readers, const absl::Status& why);
  void On(const TierShrunk& signal);
  void On(const PromotionFailed& signal);
  void RevokeLeases(Waiter& waiter);
  void RevokeLeasesAgain(Job& job, Tier tier);

  // --- chunks/steps.cc ---
  // The session's part of this number that runs; nullopt: none does.
  static absl::optional<StepId> RunningPart(const Session& session, uint64_t part);
  // The part waits for its chunks, of which those from `first_written` on are written, and runs.
  void Wait(Session& session, CallId call, std::vector<ChunkIndex> chunks, size_t first_written,
            RunStep run, Duration deadline);
  void Proceed(Waiter& waiter, const RunStep& then);
  // Gives up the pins of a part, and discards what it has written unless `status` is OK.
  RunningStep EndStep(StepId id, const absl::Status& status, uint64_t non_finite_gradients);

  // --- chunks/discard.cc ---
  // Drops the content of the chunk. REQUIRES: it is not pinned.
  void Discard(ChunkIndex index);

  // --- chunks/shadows.cc ---
  void SwapContents(ChunkIndex a, ChunkIndex b);
  void LinkShadow(ChunkIndex index, ChunkIndex shadow);
  void UnlinkShadow(ChunkIndex index);
  void ForgetWishes(ChunkIndex index);

  // --- chunks/movement.cc ---
  void On(const PrefetchCall& event);
  void On(const TransferDone& event);
  // The chunk takes its next step: it moves for the strongest of its pending movements, then, in
  // Advance(), for the others. EndAdvance() comes last. kNone: it cannot move. kReached: it is
  // where waiting calls need it. kEvicted: it has left as calls requested, or is leased.
  enum class Step { kNone, kMoves, kReached, kEvicted };
  Step BeginAdvance(ChunkIndex index);
  void Advance(ChunkIndex index);
  void EndAdvance(ChunkIndex index);
  // True: the chunk has a valid copy at `tier`. False: the next transfer started or waits for a
  // slot.
  bool PromoteTo(ChunkIndex index, Tier tier);
  // Drops the copy at `tier`, after a write-back if it is the only one. True: it is gone.
  bool EvictFrom(ChunkIndex index, Tier tier);
  void CancelEviction(Chunk& chunk);
  bool TakeSlot(ChunkIndex index, Tier tier);
  void StopWaitingForSlot(ChunkIndex index, Tier tier);
  void DropCopy(ChunkIndex index, Tier tier);
  void MakeRoom(Job& job, Tier tier);
  void Start(ChunkIndex index, absl::optional<Tier> from, Tier to);
  void TransferFailed(ChunkIndex index, const Flight& flight, const TransferDone& done,
                      const absl::Status& status);
  void RetryLater(ChunkIndex index);
  void RetryWrites(Job& job);
  void NoteFailure(ChunkIndex index, const absl::Status& status);
  void ReportFailures(Job& job);
  // --- chunks/pacing.cc ---
  // The write of the chunk to its place on SSD.
  SsdWrite WriteOf(ChunkIndex index) const;
  // False: the chunk waits until the budgets permit the write.
  bool BeginWrite(ChunkIndex index);
  void StopWaitingForWrite(ChunkIndex index);
  void SetBudgets(const std::vector<Quota>& quotas);
  // Tries the writes again that the budgets permit now.
  void ServeWrites();
  void ReportWait(ChunkIndex index);
  // Whether evictions of the job have waited for a budget since then.
  bool WaitedForBudget(const Job& job, Instant since) const;

  // --- chunks/movement.cc, continued ---
  // Writes the copy at `tier` to the tier below if it is the only one. True: no more is to be done.
  bool WriteBack(ChunkIndex index, Tier tier);
  // Whether the content would be lost without the copy there, or would be when the daemon ends.
  bool IsOnlyCopy(const Chunk& chunk, Tier tier) const;
  // --- chunks/clean_check.cc ---
  // Whether the copy at `tier` is to be compared before it is dropped as clean. Counts the drop.
  bool IsChosenForCheck(ChunkIndex index, Tier tier);
  void StartCheck(ChunkIndex index);
  void CheckDone(ChunkIndex index, const Flight& flight, const absl::Status& status);
  // Drops each copy at the device that is not the only one.
  void DropUnannounced(const Job& job);
  // The names of the last moments that used the chunk, for an error.
  std::string LastMomentsOf(const Chunk& chunk) const;

  // --- chunks/verify.cc ---
  // Whether the content gets sums when it is written to SSD, and is compared with them later.
  bool IsVerified(const Chunk& chunk) const;
  ContentSums SumsToCompare(const Chunk& chunk) const;
  // Compares the next piece of a content at rest.
  void Scrub();
  absl::optional<ChunkIndex> NextToScrub();
  void StartScrub(ChunkIndex index);
  void ScrubDone(ChunkIndex index, const Flight& flight, const TransferDone& done);
  // Returns whether another copy of the chunk is valid.
  bool BadCopy(ChunkIndex index, const absl::Status& what);

  // --- chunks/movement.cc, continued ---
  void FreeUnusedSlots(ChunkIndex index);
  void ProceedWaiters(ChunkIndex index);
  void StopPrefetch(Chunk& chunk);
  MemoryPlace PlaceOf(const Chunk& chunk, Tier tier) const;

  // --- chunks/evict.cc ---
  void FinishEvicts(ChunkIndex index);
  void On(const EvictionFailed& signal);
  void FinishEvicts(ChunkIndex index, const absl::Status& status);
  void EndEvict(EvictOperation& evict, const absl::Status& status);

  // --- forecast/predict.cc ---
  void On(const ReportCall& event);
  absl::Status CheckMoments(const std::vector<MomentReport>& moments) const;
  // `by`: parts of steps use chunks beside the script, in any order.
  enum class UsedBy { kScript, kPart };
  void Learn(const Session& session, const std::vector<MomentReport>& moments,
             UsedBy by = UsedBy::kScript);
  void EndIteration(Job& job, uint64_t clock);
  absl::optional<ResidencyPlan::Slots> SlotsToPlan(const Job& job) const;
  bool IsSuperseded(const Chunk& chunk) const;
  VirtualTime NextUseOfContent(const Chunk& chunk) const;
  ChunkIndex IndexWanted(const Job& job, Member member, VirtualTime time) const;
  // Microseconds of the job's own clock, which stands still while its fetches wait.
  uint64_t ClockOf(const Job& job) const;
  VirtualTime RankOf(const Chunk& chunk, Tier tier);
  void Rank(ChunkIndex index);
  // Whether the chunk is pinned at the tier.
  bool IsPinnedAt(const Chunk& chunk, Tier tier) const;
  // Whether the copy at the tier may be chosen as a victim.
  bool MayLeave(const Chunk& chunk, Tier tier) const;
  void UpdateVictim(ChunkIndex index, Tier tier);
  absl::optional<bool> PlannedToStay(const Chunk& chunk, Tier tier) const;
  EvictionCost CostOf(const Chunk& chunk, Tier tier) const;
  void AddEvictionHints(const Session& session, FetchReply* reply) const;

  // --- forecast/prefetch.cc ---
  void SchedulePrefetch(Job& job);
  bool PrefetchOrWriteBack();
  bool Prefetch(Job& job, Tier tier);
  JobForecast::Prefetch TryPrefetch(Job& job, Tier tier, Member member, VirtualTime time);
  absl::optional<Candidate> VictimAfter(const Job& job, Tier tier, VirtualTime time) const;
  bool HasRoomUntil(Job& job, Tier tier, VirtualTime time);
  void RevokeFarthest(Job& job, VirtualTime time);
  bool WriteBackEarly(Job& job, Tier tier);
  bool IsWorthASlot(const Job& job, Tier tier, VirtualTime time) const;

  // --- inspection/trace.cc ---
  absl::optional<uint32_t> MomentsUntilUse(const Chunk& chunk) const;
  TracedMove Trace(const Chunk& chunk, absl::optional<Tier> from, absl::optional<Tier> to) const;

 private:
  Core& core_;

  uint64_t quotas_number_ = 0;  // SetQuotasCall::number of those that hold.

  // What is scrubbed next: from `offset` on the chunk that is the member of the job, or, if there
  // is no such content, the next one.
  struct ScrubPlace {
    JobId job;
    Member member;
    Bytes offset;
    absl::optional<Version> failed;  // The last attempt found no right bytes of it there.
  };
  ScrubPlace scrub_;
  absl::optional<TransferId> scrubbing_;  // In flight.
  Instant scrub_began_, next_scrub_;

  bool machine_short_ = false;  // Some balloon is not empty.

  std::map<uint32_t, Stripes> stripes_;         // By store, where there are several drives.
  std::map<uint32_t, Instant> reported_waits_;  // When a WritesWait was last emitted, by uid.

  std::set<JobId> exposed_;  // The jobs with exposed regions, and some that have ended.

  std::vector<JobId> ended_;  // Jobs without memory, erased when the event has settled.
  // The tiers where the chunk that Advance() handles waits for a slot. SSD: for a budget of writes.
  TierSet queued_for_;

  uint64_t next_transfer_ = 1, next_step_ = 1;
  uint64_t rankings_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_STATE_H_

// Residency: where the contents of chunks are, and how they move: as calls ask for it, as victims,
// and as the prefetcher advises. Engine-internal.
//
// Residency alone changes copies and homes: it has the ChunkTable::WritableCopies. Each of its
// verbs that changes a copy leaves the chunk in the queues of victims where it belongs, and all of
// these but Tear() and QuarantineCopy() in the record of the event. CancelEviction(),
// StopPrefetch() and the links of shadows leave both to their caller.
//
// A chunk has one transfer in flight at most. Its pending movements and its copies determine the
// next one. Calls that wait for a chunk hear of failures by signals.
#ifndef MEMTIDE_DAEMON_ENGINE_RESIDENCY_RESIDENCY_H_
#define MEMTIDE_DAEMON_ENGINE_RESIDENCY_RESIDENCY_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/engine/core.h"
#include "daemon/engine/memory/memory.h"
#include "daemon/engine/residency/victims.h"

namespace memtide {

// A chunk that is to be made, in the home that is reserved for it, or as the reader of a content.
struct NewChunk {
  SessionId owner;
  Version version;
  ChunkKind kind = ChunkKind::kOther;
  bool undefined = false, transient = false, repeats_offer = false;  // As in Chunk.
  bool is_unnamed = false;  // No id names it yet (NameTable).
  Home home;
  CommonContent* reads = nullptr;    // Then it has no home of its own.
  absl::optional<ChunkId> recorded;  // A restored chunk has its id and copies.
  Copies copies;
};

class Residency {
 public:
  Residency(Core& core, Memory& memory, Victims& victims)
      : core_(core), memory_(memory), victims_(victims) {}

  // The chunk is a live member of the job, with an id that no chunk had. REQUIRES: a restored one
  // is made while the table is being restored.
  ChunkIndex MakeChunk(Job& job, NewChunk made);
  // The chunk is not live any more, and no movement is pending for it. True: as ReleaseIfUnused(),
  // which comes with it. REQUIRES: it is live, has no pin, and no call waits for it.
  bool EndChunk(ChunkIndex index);

  // Before a write to SSD: the chunk leaves a slot that a snapshot names. False: none is free.
  bool LeaveSnapshotSlot(ChunkIndex index);
  // The copies of the job's chunks at the device are not there any more. Calls that wait to read
  // what is lost by that fail with the error.
  void LoseDeviceCopies(Job& job, const absl::Status& why);
  void On(const SetQuotasCall& event);
  // Frees the slots of a freed chunk and its index, unless a transfer or step uses them. True:
  // allocations that wait may have their turn.
  bool ReleaseIfUnused(ChunkIndex index);
  // The content is about to change in place: a new version has its only copy at the tier of the
  // pins. REQUIRES: it is valid there, and a pin excludes all others.
  void WriteInPlace(ChunkIndex index);
  // Drops the content: the chunk reads as before it was first written. REQUIRES: it is not pinned.
  void Discard(ChunkIndex index);
  // The same, but the chunk reads as anything until it is written.
  void DiscardUndefined(ChunkIndex index);
  // The writer of the content has died: it is neither the old nor the new one until all of it is
  // written. REQUIRES: a granted pin writes it.
  void Tear(ChunkIndex index) { copies_[index].torn = true; }
  // Processes that had leased the chunk at the device with this access may still use its slot
  // there, which no other chunk gets until Share::EndQuarantine(). Nothing that they write there is
  // a copy.
  SlotNumber QuarantineCopy(ChunkIndex index, Access access);
  // A flush has failed. The copy on SSD, or the one that is being written, counts no more, so that
  // another one is written there, as soon as host memory has one, too: a device may be lost.
  void DistrustSsd(ChunkIndex index);
  // The copy in host memory becomes a content of the job (Job::duplicated), which the chunk reads
  // from now on. Its home is free, and the copy at the device stays.
  // REQUIRES: it is valid in host memory, and has neither pin nor transfer.
  void HoldInCommon(Job& job, ChunkIndex index);
  // The chunk reads the content of `reader`, which has what the chunk held, but for the copy at the
  // device: that stays. As the bytes are the same, so is its version: step parts that have read
  // them count. REQUIRES: as SwapContents(), and the two contents are equal.
  void BecomeCommon(ChunkIndex index, ChunkIndex reader);
  // The chunk has a content of its own from now on, in `valid`, and the home.
  // REQUIRES: its content is common.
  void LeaveCommon(ChunkIndex index, Home home, TierSet valid);
  // Exchanges what the two chunks hold, and where it is, under a new version.
  // REQUIRES: neither is pinned.
  void SwapContents(ChunkIndex a, ChunkIndex b);
  // The two are a pair: a step creates the new content of the chunk in the shadow chunk.
  // REQUIRES: neither has a counterpart.
  void LinkShadow(ChunkIndex index, ChunkIndex shadow);
  // Ends the pair, if the chunk is one of a pair.
  void UnlinkShadow(ChunkIndex index);
  void On(const TransferDone& event);
  // The chunk takes its next step: it moves for the strongest of its pending movements, then, in
  // Advance(), for the others. EndAdvance() comes last. kNone: it cannot move. kReached: it is
  // where waiting calls need it. kEvicted: it has left as calls requested, or is leased.
  enum class Progress { kNone, kMoves, kReached, kEvicted };
  Progress BeginAdvance(ChunkIndex index);
  void Advance(ChunkIndex index);
  void EndAdvance(ChunkIndex index);
  // The chunk is no victim any more, so that another one is chosen.
  void CancelEviction(Chunk& chunk);
  // True: the chunk has a slot at the tier. False: it waits for one, in the tier's order.
  bool TakeSlot(ChunkIndex index, Tier tier);
  // Finds room for the chunks that wait for slots: free slots, more memory, victims.
  void MakeRoom(Job& job, Tier tier);
  // Begins a copy of the content from the tier, or zeros, to the other one.
  // REQUIRES: as Begin(); the chunk has a slot at both, and its content at the first.
  void Start(ChunkIndex index, absl::optional<Tier> from, Tier to);
  // A call waits for the chunk: a prefetch or a scrub of it that is in flight precedes others.
  void Expedite(ChunkIndex index);
  // At each Tick: writes to a slower tier that failed, and failures that the log does not have.
  void RetryWrites(Job& job);
  void ReportFailures(Job& job);
  // False: the chunk waits until the budgets permit the write.
  bool BeginWrite(ChunkIndex index);
  // Tries the writes again that the budgets permit now.
  void ServeWrites();
  // Whether evictions of the job have waited for a budget since then.
  bool WaitedForBudget(const Job& job, Instant since) const;
  // Drops each copy at the device that is not the only one.
  void DropUnannounced(const Job& job);
  // Ends the chunk's prefetch, if it has one. A transfer in flight goes on.
  void StopPrefetch(Chunk& chunk);
  // Lists the job, where something may be worth a prefetch.
  void SchedulePrefetch(Job& job);
  // The write of the chunk to its place on SSD.
  SsdWrite WriteOf(ChunkIndex index) const;
  // The sums with which the content on SSD is compared; empty: with none.
  ContentSums SumsToCompare(const Chunk& chunk) const;
  // The copy on SSD is not what was written. Returns whether another one is valid.
  bool BadCopy(ChunkIndex index, const absl::Status& what);
  // Starts the transfer as the chunk's flight. REQUIRES: it has none; a pending movement that
  // causes it is still set.
  TransferId Begin(ChunkIndex index, absl::optional<Tier> from, Tier to, StartTransfer&& start);

 private:
  void EndSsdCopy(ChunkIndex index);
  void Arrived(ChunkIndex index, const Flight& flight, const TransferDone& event);
  // The copy at the tier, valid or not, and its slot are given up. REQUIRES: no transfer uses them.
  void DropCopy(ChunkIndex index, Tier tier);
  // Cancels the movements that are pending for the present content, which goes to another chunk or
  // nowhere. Movements for which calls wait stay.
  void CancelMovements(ChunkIndex index);
  // The chunk holds something else, or elsewhere.
  void NoteChange(ChunkIndex index) {
    core_.MarkDirty(index);
    victims_.Rank(index);
    core_.ScheduleChunk(index);
  }
  void SetHome(ChunkIndex index, Home home);
  void Read(Job& job, ChunkIndex index, CommonContent& content);
  // The content changes or ends: the copies in `valid` are those of its next version, and others
  // go.
  void BeginVersion(ChunkIndex index, TierSet valid);
  // Whether kernels of an ended session may still write to the chunk's slot at the device.
  bool InQuarantine(const Chunk& chunk) const;
  // Drops a copy in a quarantined slot that is torn, or that another copy can replace.
  void LeaveQuarantine(ChunkIndex index);
  // The memory of the chunk's slot at the device cannot be read any more. True: the chunk's content
  // is lost.
  bool DeviceMemoryFailed(ChunkIndex index, const absl::Status& why);
  // The transfer has ended well.
  void CountTransfer(Job& job, const Flight& flight);
  void ForgetAfterTransfer(ChunkIndex index);
  void LeaveContent(CommonContent& content);
  // True: the chunk has a valid copy at `tier`. False: the next transfer started or waits for a
  // slot.
  bool PromoteTo(ChunkIndex index, Tier tier);
  // Drops the copy at `tier`, after a write-back if it is the only one. True: it is gone.
  bool EvictFrom(ChunkIndex index, Tier tier);
  void DropClean(Job& job, Tier tier, SlotNumber slot);
  void StopWaitingForSlot(ChunkIndex index, Tier tier);
  void StopWaitingForWrite(ChunkIndex index);
  void TransferFailed(ChunkIndex index, const Flight& flight, const TransferDone& done,
                      const absl::Status& status);
  void RetryLater(ChunkIndex index);
  // The content is lost if no copy is valid; returns whether it is.
  bool LoseIfNoCopy(ChunkIndex index, const absl::Status& why);
  void NoteFailure(ChunkIndex index, const absl::Status& status);
  void SetBudgets(const std::vector<Quota>& quotas);
  void ReportWait(ChunkIndex index);
  // Writes the copy at `tier` to the tier below if it is the only one. True: no more is to be done.
  bool WriteBack(ChunkIndex index, Tier tier);
  // Whether the copy at `tier` is to be compared before it is dropped as clean. Counts the drop.
  bool IsChosenForCheck(ChunkIndex index, Tier tier);
  void StartCheck(ChunkIndex index);
  void CheckDone(ChunkIndex index, const Flight& flight, const absl::Status& status);
  // Whether the content gets sums when it is written to SSD, and is compared with them later.
  bool IsVerified(const Chunk& chunk) const;
  void FreeUnusedSlots(ChunkIndex index);
  TracedMove Trace(const Chunk& chunk, absl::optional<Tier> from, absl::optional<Tier> to) const;

  Core& core_;
  Memory& memory_;
  Victims& victims_;
  const ChunkTable::WritableCopies copies_{core_.chunks};

  uint64_t quotas_number_ = 0;  // SetQuotasCall::number of those that hold.

  std::map<uint32_t, Instant> reported_waits_;  // When a WritesWait was last emitted, by uid.
  // The tiers where the chunk that Advance() handles waits for a slot. SSD: for a budget of writes.
  TierSet queued_for_;

  uint64_t next_transfer_ = 1;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_RESIDENCY_RESIDENCY_H_

// Memory: the memory that jobs have at each tier: segments, shares that grow and shrink, balloons,
// regions that sessions have mapped, and memory that failed. Engine-internal.
//
// It knows no copies. Where memory concerns chunks or calls, it lists a room check or sends a
// signal.
#ifndef MEMTIDE_DAEMON_ENGINE_MEMORY_MEMORY_H_
#define MEMTIDE_DAEMON_ENGINE_MEMORY_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "daemon/engine/core.h"
#include "daemon/io/stripes.h"

namespace memtide {

class Memory {
 public:
  explicit Memory(Core& core) : core_(core) {}

  void On(const RegionMade& event);
  void On(const RegionDropped& event);
  void On(const StoreMade& event);
  void On(const StoreDropped& event);
  absl::StatusOr<MemoryKind> DeviceMemory(const OpenCall& event) const;
  void TakeShares(Job& job, std::unique_ptr<JobShares> shares);
  // Makes the next segment of the tier, unless one is being made or the share is used up.
  void Grow(Job& job, Tier tier);
  // Requests memory for `count` more homes of chunks at the tier, if its share is elastic. At the
  // lowest tier a home is a slot, and at one above it a claim on one. Grow() makes the memory.
  void GrowForHomes(Job& job, Tier tier, uint32_t count);
  // Whether `count` homes are free now at the lowest tier. Calls::TryClaim() knows it of claims.
  static bool HasHomes(const Job& job, uint32_t count);
  // Reserves a home. REQUIRES: HasHomes(), or there is room for a claim.
  static Home TakeHome(Job& job, Tier tier);
  void NoteStripes(StoreId store, StripeCounts counts);
  // The bytes of each drive in a chunk's place on SSD.
  std::vector<Bytes> BytesByDrive(const MemoryPlace& place, Bytes size) const;
  void MaybeDropMemory(Job& job);
  void On(const ResizeCall& event);
  void On(const ReturnRegionsCall& event);
  // Gives up free slots beyond the share, and revokes leases beyond it.
  void GiveSurplusBack(Job& job);
  // The session ends, and with it all its mappings.
  void LeaveRegions(Job& job, SessionId session);
  void EndResize(Job& job, const absl::Status& status);
  void ExpireResizes();
  // Gives the slot up: the job has one less.
  void RetireSlot(Job& job, Slot slot);
  // The process of a session that has ended may still write to the host memory of the job.
  void ExposeRegions(Job& job);
  // Not OK: an Open of the job has to wait until its regions are replaced.
  static absl::Status CheckExposed(const Job& job);
  bool has_exposed() const { return !exposed_.empty(); }
  // Begins to replace the next region that can be.
  void ReplaceExposed();
  // UNAVAILABLE: the sessions of the job have regions of the device that are lost.
  static absl::Status CheckRegions(const Job& job);
  // Requests `lacking` more slots: from free memory now, otherwise by reclaiming from jobs above
  // their fair share.
  void GrowShare(Job& job, Tier tier, uint32_t lacking, bool may_reclaim = true);
  // True: memory for the OpenCall is being reclaimed.
  bool ReclaimForOpen(const OpenCall& open, const Owner& owner);
  // Elastic shares give back what exceeds a quota, as far as their jobs can do without it.
  void ShrinkOverQuota();
  // Serves starved jobs and waiting OpenCalls with memory that jobs gave back. False: none was.
  bool ServeFreed();
  void On(const HostMemory& event);
  void On(const SlotReleased& event);
  void On(const SlotPopulated& event);
  // Releases free slots beyond the size of the pool to the machine.
  void ReleaseSurplusSlots(Job& job, Tier tier);
  // Deflates the balloon for chunks that wait for slots while no victim is left.
  void DeflateForWaiting(Job& job, Tier tier);
  // Sends the lease budget of that many slots to one session, or of a share that has changed to all
  // sessions of the job, if they lease there.
  void SendBudget(SessionId session, uint32_t slots, uint32_t most_slots);

 private:
  // The copy of the job's first exposed region was made, or could not be.
  void RegionCopied(Job& job, const absl::Status& status);
  void SegmentMade(Tier tier, uint32_t segment, const absl::Status& status);
  void SendRegions(const Job& job, uint32_t region);
  void SegmentDropped(uint32_t segment);
  absl::Status CheckResize(const Job& job, const ResizeCall& event) const;
  // The region is no slot any more. It is dropped when `holders`, which get SendRegionGone, have
  // returned it.
  void LetGo(Job& job, uint32_t region, std::vector<SessionId> holders);
  void RegionReturned(Job& job, uint32_t region, SessionId session);
  // Answers the waiting resize if no more memory must be given back.
  void FinishResize(Job& job);
  bool CanReplace(const Job& job) const;
  ShareLedger::Opens WaitingOpens(Pool pool) const;
  ShareLedger::Demands DemandsOf(Tier tier) const;
  // Tells sessions and waiting chunks that a pool of slots has another size.
  void Apply(const ShareLedger::Change& change);
  void Apply(const ShareLedger::Changes& changes);
  // Populates one released slot again.
  void PopulateNextSlot(Job& job);
  void SendBudgets(const Job& job, const ShareLedger::Change& change);

  Core& core_;

  std::map<uint32_t, Stripes> stripes_;  // By store, where there are several drives.
  bool machine_short_ = false;           // Some balloon is not empty.
  std::set<JobId> exposed_;              // The jobs with exposed regions, and some that have ended.
  uint32_t replacement_ = kNoSegment;    // The copy of an exposed region that is being made.
  std::vector<JobId> ended_;             // Jobs without memory, erased when the event has settled.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_MEMORY_MEMORY_H_

// Mover: carries out the engine's memory effects: regions, stores, transfers and optimizer steps.
//
// The Mover owns the memory of the regions and, for each device, one queue per direction, each
// served by as many threads as the device takes copies at once: no device waits for the copies of
// another. DiskTransfers carries out those of the Disk. The threads of the direction into a device
// also zero its slots; those of the host have a thread of their own. The engine bounds the queues:
// there is at most one transfer per slot. Making and dropping memory is slow (pre-faulting takes
// 0.1 to 1.7 s per GiB and thread: base/populate.h) and has a thread of its own, and so have
// stores, because a file system may hang, and what waits for the service manager. Steps run on half
// of the cores at a lower priority, because the training processes need the others. Checks of
// copies have a thread for each device at that priority, too, and one buffer of 8 MiB at most. All
// queues serve jobs in turn by bytes, and steps and memory in pieces of at most a chunk or 64 MiB.
// On a machine with several NUMA nodes, the threads of a device are on its node, and host memory is
// on the node of the devices, if all are on one.
//
// Each effect ends with one event, passed to `post` from a thread of the Mover or of the Disk
// (TransferDone, StepDone, RegionMade, RegionDropped, SlotReleased, SlotPopulated, StoreMade,
// StoreDropped or SnapshotSaved) once the Mover no longer uses anything that the effect names.
// Memory that outlives the daemon is in the service manager's descriptor store before its
// RegionMade or StoreMade.
//
// Thread safety: thread-safe. The destructor finishes all effects that were started, except steps
// and what waits for the service manager: it drops what has not begun of these, without an event.
#ifndef MEMTIDE_DAEMON_MOVER_MOVER_H_
#define MEMTIDE_DAEMON_MOVER_MOVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/content_hash.h"
#include "base/ids.h"
#include "base/numa.h"
#include "daemon/device/device.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"
#include "daemon/io/disk.h"
#include "daemon/io/owned_fd.h"
#include "daemon/io/stripes.h"
#include "daemon/mover/copy_check.h"
#include "daemon/mover/disk_transfers.h"
#include "daemon/mover/host_nodes.h"
#include "daemon/mover/regions.h"
#include "daemon/mover/work_queue.h"

namespace memtide {

class Mover {
 public:
  // `devices` are those of the node by number, and `disk` is null if it has none; all must outlive
  // the Mover. `post` is called from several threads at once, until the Mover is destroyed. It must
  // not wait for the Mover or the disk.
  Mover(const std::vector<Device*>& devices, Disk* disk, std::function<void(Event)> post);
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  void Start(const MakeRegion& effect);
  void Start(const DropRegion& effect);
  // REQUIRES (both): the slot is in a host region that was made and not dropped, and in no transfer
  // or step; it was emptied, or not.
  void Start(const ReleaseSlot& effect);
  void Start(const PopulateSlot& effect);
  void Start(const MakeStore& effect);
  void Start(const DropStore& effect);
  // REQUIRES: the region or regions, and the store, were made and not dropped; the ranges are
  // inside.
  void Start(const StartTransfer& effect);
  void Start(const AwaitTransfer& effect);
  // REQUIRES: the work is valid for these chunks, which are in host regions that were made and not
  // dropped.
  void Start(const StartStep& effect);
  // A SaveSnapshot, of the job with these stores. `encode` returns its text, in a thread of the
  // Mover, as there may be a million chunks.
  void SaveSnapshot(JobId job, std::vector<StoreId> stores, std::function<std::string()> encode);
  // Ends without an event; if it fails, the log says why, and the next daemon has the job again.
  void Start(const DropSnapshot& effect);

  // Adopt takes over memory that an earlier process made by MakeRegion or MakeStore with
  // `persistent`; Disown undoes that. Both act at once, post no event, and are called before the
  // engine knows the memory. Slots at the offsets in `empty` are as after ReleaseSlot.
  // `near_device` is as in MakeRegion.
  absl::Status Adopt(RegionId region, Bytes size, Bytes slot, OwnedFd memory,
                     std::set<uint64_t> empty, absl::optional<uint32_t> near_device);
  // `counts`: the StripesOf(store) of then.
  absl::Status Adopt(StoreId store, Bytes size, StripeCounts counts, std::vector<OwnedFd> files);
  // The same with files that have names by a snapshot. They are in the service manager's store when
  // this returns, if there is one.
  absl::Status AdoptNamed(StoreId store, Bytes size, StripeCounts counts);
  void Disown(RegionId region);
  void Disown(StoreId store);

  // How the store is striped, for the process that adopts it. Empty if it does not exist.
  StripeCounts StripesOf(StoreId store) const;

  // The descriptor or IPC handle with which a client maps the region. The caller owns the former.
  // NOT_FOUND if the region does not exist.
  absl::StatusOr<MemoryExport> Export(RegionId region) const;

 private:
  // A range of a region. The region stays mapped for as long as the Range exists.
  struct Range {
    char* host() const { return region->host->data() + offset.count(); }
    // The same, and keeps the region.
    std::shared_ptr<char> shared_host() const { return {region, host()}; }

    std::shared_ptr<Region> region;
    Bytes offset;
  };

  // The queues of work that moves bytes of one device.
  struct Link {
    explicit Link(Device* device);

    Device* const device;
    CopyCheck check;  // Used by the thread of the checks only.
    // Destroyed before everything above.
    WorkQueue checks, out, in;
  };
  // The number of the HostNode for jobs that use the device, or none.
  size_t HostNodeOf(absl::optional<uint32_t> device) const;
  // Host memory, a slot and a step that are being made, piece by piece.
  struct Making;
  struct Filling;
  struct Stepping;

  // The one of the region's device. REQUIRES: the region is of a device.
  Link& LinkOf(const Range& range) { return *links_[range.region->device_number]; }

  Range At(const MemoryPlace& place, Bytes size, Tier tier) const;
  absl::StatusOr<std::shared_ptr<Region>> MakeOnDevice(const MakeRegion& effect,
                                                       const std::string& name);
  // True (all): it was the last piece.
  bool MakeNext(Making& making);
  bool FillNext(Filling& filling);
  bool StepNext(Stepping& step);
  void RegionIsMade(const MakeRegion& effect, std::shared_ptr<Region> region);
  static void CopySlot(const Region& from, Bytes offset, Region* to);
  // Registers one slot of host memory with the disk and the devices, or takes that back.
  void Announce(const Region& region, Bytes offset);
  void Withdraw(const Region& region, Bytes offset);
  void AnnounceAll(const Region& region);
  // Passes the region's memory to the devices.
  void Share(const Region& region);
  void Dispose(std::shared_ptr<Region> region);
  // Removes the region and returns its pages to the machine.
  void Drop(RegionId id);
  void CopyIn(const StartTransfer& effect);
  void CopyOut(const StartTransfer& effect);
  void Zero(const StartTransfer& effect);
  void ZeroOnDevice(const StartTransfer& effect);
  void Compare(const StartTransfer& effect);
  void UseDisk(const StartTransfer& effect);

  const std::vector<Device*> devices_;  // By number.
  Disk* const disk_;
  const std::vector<NumaPlacement> host_placements_;  // HostPlacementsOf(devices_).
  // Digests of contents leave neither the daemon nor its engine.
  const HashSecret hash_secret_;
  const std::function<void(Event)> post_;
  Regions regions_;

  // Destroyed before everything above. memory_ and stores_ push to keeping_.
  WorkQueue keeping_, memory_, stores_;
  std::unique_ptr<DiskTransfers> disk_transfers_;      // Null without a disk.
  std::vector<std::unique_ptr<HostNode>> host_nodes_;  // By the number of their placement.
  std::vector<std::unique_ptr<Link>> links_;           // By the number of the device.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_MOVER_MOVER_H_

// Mover: carries out the engine's memory effects: regions, stores and transfers.
//
// Owns the regions' memory and one queue per device direction, each served by one thread; disk
// transfers go straight to the disk, which bounds what is in flight. Zeroing, of host slots too,
// is done by the thread of the direction into the device. The engine bounds the queues: a transfer
// exists for a slot at most. Completions come back through `post`, from the mover's and the disk's
// threads, as TransferDone, StepDone, RegionMade, RegionDropped, SlotEmptied, SlotFilled, StoreMade
// and StoreDropped: one for each effect, when the mover uses nothing of it any more. Making and
// dropping memory takes long (pre-faulting: 0.1 to 1.7 s per GiB) and has its own thread. Steps
// have half of the cores, at a lower priority: the programs that train need theirs. Memory that is
// to outlive the daemon is given to the service manager before it is said to be made. Thread-safe.
// The destructor finishes what was started.
#ifndef MEMTIDE_DAEMON_MOVER_MOVER_H_
#define MEMTIDE_DAEMON_MOVER_MOVER_H_

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/engine/effects.h"
#include "daemon/engine/events.h"
#include "daemon/io/disk.h"
#include "daemon/io/owned_fd.h"

namespace memtide {

class Mover {
 public:
  // `device` and `disk` may be null: the node has none; both must outlive the mover. `post` may be
  // called at once and from several threads, until the mover is destroyed. It must not wait for
  // the mover or the disk.
  Mover(Device* device, Disk* disk, std::function<void(Event)> post);
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  void Start(const MakeRegion& effect);
  void Start(const DropRegion& effect);
  // REQUIRES (both): the slot is in a host region that was made and not dropped, and in no transfer
  // or step; it was emptied, or not.
  void Start(const EmptySlot& effect);
  void Start(const FillSlot& effect);
  void Start(const MakeStore& effect);
  void Start(const DropStore& effect);
  // REQUIRES: the region or regions, and the store, were made and not dropped; the ranges are
  // inside.
  void Start(const StartTransfer& effect);
  // REQUIRES: the work is valid for these chunks, which are in host regions that were made and not
  // dropped.
  void Start(const StartStep& effect);

  // Memory of a process before us, as MakeRegion and MakeStore with `kept` made it there, before
  // the engine knows of it; and what undoes that, before the engine does. At once, and without an
  // event. Slots at the offsets `empty` become what EmptySlot makes of them.
  absl::Status Adopt(RegionId region, Bytes size, Bytes slot, OwnedFd memory,
                     std::set<uint64_t> empty);
  absl::Status Adopt(StoreId store, Bytes size, std::vector<OwnedFd> files);
  void Disown(RegionId region);
  void Disown(StoreId store);

  // What to pass of the region to a client; the descriptor, if there is one, is the caller's.
  // NOT_FOUND when the region is not (any more) there.
  absl::StatusOr<MemoryExport> Export(RegionId region) const;

 private:
  class State;
  const std::unique_ptr<State> state_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_MOVER_MOVER_H_

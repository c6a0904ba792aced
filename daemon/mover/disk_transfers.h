// DiskTransfers: the transfers between host memory and a disk, with the sums of what they move.
//
// The disk bounds what is in flight. Sums of what is written, and of what was read, are computed in
// threads of this class, one for each directory of the disk: its own threads have other transfers
// to serve, and sums are computed faster than one drive reads or writes.
//
// Each transfer ends with one TransferDone, passed to `post` from a thread of this class or of the
// disk when the memory is no longer used. A read whose sums are others than StartTransfer has ends
// with DATA_LOSS and TransferDone::wrong_bytes.
//
// Thread safety: thread-safe. The destructor waits for all transfers.
#ifndef MEMTIDE_DAEMON_MOVER_DISK_TRANSFERS_H_
#define MEMTIDE_DAEMON_MOVER_DISK_TRANSFERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"
#include "daemon/io/disk.h"
#include "daemon/mover/work_queue.h"

namespace memtide {

class DiskTransfers {
 public:
  // `disk` outlives this object. The threads of the sums run on `cpus`; empty: anywhere.
  DiskTransfers(Disk* disk, const std::vector<int>& cpus, std::function<void(Event)> post);
  ~DiskTransfers();
  DiskTransfers(const DiskTransfers&) = delete;
  DiskTransfers& operator=(const DiskTransfers&) = delete;

  // kHostToSsd, kSsdToHost: `memory` is the slot, and is let go before the event. kVerifySsd: none.
  // REQUIRES: the memory of a write does not change until the event, or the copy does not count.
  void Start(const StartTransfer& effect, std::shared_ptr<char> memory);

 private:
  void Write(const StartTransfer& effect, std::shared_ptr<char> memory);
  void Read(const StartTransfer& effect, std::shared_ptr<char> memory);
  void End(TransferDone done);

  Disk* const disk_;
  const std::function<void(Event)> post_;
  Mutex mutex_;
  CondVar idle_;
  uint64_t transfers_ ABSL_GUARDED_BY(mutex_) = 0;  // Started and not yet completed.
  WorkQueue sums_;                                  // Destroyed before everything above.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_MOVER_DISK_TRANSFERS_H_

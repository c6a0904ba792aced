// IoScheduler: cuts transfers into pieces and says which piece goes next.
//
// There is one lane per drive and direction, each with a bounded number of bytes in flight: more
// would add latency and no throughput. Directories of one drive share its lanes. A full lane starts
// nothing until half of its bytes have arrived, because pieces that are submitted together cost the
// kernel, and the host of a virtual machine, little more than one piece (a third to a half of the
// CPU time per GB). A lane serves one transfer at a time: those that a call waits for first, jobs
// in turn by bytes, the transfers of one job in the order of Add. Pieces come from a fixed pool;
// nothing is allocated per piece.
//
// Thread safety: thread-compatible. The class has no threads and does no I/O: UringDisk drives it
// from its ring's thread, ThreadDisk under a lock.
#ifndef MEMTIDE_DAEMON_IO_IO_SCHEDULER_H_
#define MEMTIDE_DAEMON_IO_IO_SCHEDULER_H_

#include <cstddef>
#include <list>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/fair_queue.h"
#include "daemon/io/disk.h"
#include "daemon/io/store_table.h"
#include "daemon/io/stripes.h"

namespace memtide {

// How transfers are cut. With the defaults, :disk_benchmark moves chunks as fast as a bare ring.
struct IoSchedulerOptions {
  Bytes piece = kStripeSize;  // At most kStripeSize.
  // Piece size for a transfer smaller than `piece` that is alone in its lane: a single piece would
  // not keep the disk busy.
  Bytes small_piece = MiB(1);
  Bytes in_flight = MiB(32);  // Per drive and direction. At least two pieces.
};

// A transfer that is queued or in flight.
struct Transfer {
  DiskTransfer request;
  Disk::Done done;
  std::shared_ptr<const Store> store;
  int registered_buffer = -1;  // Index of the registered buffer; -1: none.

  // Set by IoScheduler.
  absl::Status status;
  size_t cursors = 0;  // Directories with something left to cut.
  size_t pieces = 0;   // In flight.
};

// Part of a transfer that is in one file and in flight. Shrinks from the front as bytes arrive.
struct Piece {
  const Transfer& transfer() const { return *place; }

  std::list<Transfer>::iterator place;
  size_t lane = 0;
  Bytes lane_charge;
  size_t directory = 0;
  int fd = -1;
  Bytes file_offset;
  char* memory = nullptr;
  Bytes size;
  int attempts = 0;  // Consecutive attempts that moved no byte.
};

// A transfer that has ended. Call `done` without holding a lock.
struct Completion {
  Disk::Done done;
  absl::Status status;
};

class IoScheduler {
 public:
  IoScheduler(std::shared_ptr<const StoreTable> stores, const IoSchedulerOptions& options);

  // REQUIRES: request is aligned, not empty and inside its store.
  void Add(Transfer transfer);

  // A call waits for the transfer from now on. Ignored if none has this id.
  void Expedite(TransferId transfer);

  // The next piece to start, or null when nothing may start now. Give it to Advance.
  Piece* Next();

  enum class Outcome { kResubmit, kEnded };
  // Takes the result of an attempt at a piece: bytes moved, or a negative errno. kResubmit: some
  // of it remains (a short completion, EAGAIN, EINTR), start it again. kEnded: the piece is gone
  // and, if it was its transfer's last, *completion is set.
  Outcome Advance(Piece* piece, ssize_t result, absl::optional<Completion>* completion);

  bool idle() const { return transfers_.empty(); }
  // Pieces that can be in flight at once, at most.
  size_t capacity() const { return pieces_.size(); }

 private:
  // The rest of a transfer's part in one directory, which is not cut into pieces yet.
  struct Cursor {
    std::list<Transfer>::iterator transfer;
    size_t directory = 0;
    Bytes next;  // Offset in the store.
  };
  struct Lane {
    FairQueue<Cursor> awaited, others;
    Bytes in_flight;
    bool full = false;  // Starts nothing until half is left.
  };

  Lane& LaneOf(const Cursor& cursor);
  Piece* Cut(size_t lane);
  // Cuts no more pieces from a failed transfer.
  void Abandon(std::list<Transfer>::iterator transfer);
  absl::Status Error(const Piece& piece, int error) const;
  void End(Piece* piece, absl::optional<Completion>* completion);

  const std::shared_ptr<const StoreTable> stores_;
  const IoSchedulerOptions options_;
  std::list<Transfer> transfers_;
  std::vector<Lane> lanes_;
  std::vector<Piece> pieces_;
  std::vector<Piece*> free_pieces_;
  size_t next_lane_ = 0;  // Round robin.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_IO_SCHEDULER_H_

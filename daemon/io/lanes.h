// Lanes: cuts transfers into pieces and says which piece goes next.
//
// One lane for each directory and direction, each with a bounded number of bytes in flight: more
// would add latency and no throughput. A lane that was full is filled again once half of that has
// arrived: the pieces that are started together cost the kernel, and the host of a virtual machine,
// little more than one (a half to a third of the CPU time for each GB). Within a lane, transfers go
// first come, first served, so the first is done first. Pieces come from a pool made once; nothing
// is allocated for a piece. No threads, no I/O: UringDisk drives it from its ring's thread,
// ThreadDisk under a lock.
#ifndef MEMTIDE_DAEMON_IO_LANES_H_
#define MEMTIDE_DAEMON_IO_LANES_H_

#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/bytes.h"
#include "daemon/io/disk.h"
#include "daemon/io/store_table.h"
#include "daemon/io/stripes.h"

namespace memtide {

// How transfers are cut. With the defaults, :disk_benchmark finds a chunk to move as fast as the
// ring alone can.
struct LaneOptions {
  Bytes piece = kStripeSize;  // At most kStripeSize.
  // Of transfers of less than a whole piece, when no other waits: one alone would not keep the disk
  // busy.
  Bytes small_piece = MiB(1);
  Bytes in_flight = MiB(32);  // Of one directory and direction. At least two pieces.
};

// A transfer on its way.
struct Transfer {
  DiskTransfer request;
  Disk::Done done;
  std::shared_ptr<const Store> store;
  int registered_buffer = -1;  // The caller's; -1: none.

  // Below: of Lanes.
  absl::Status status;
  size_t cursors = 0;  // Lanes with something left to cut.
  size_t pieces = 0;   // In flight.
};

// Part of a transfer that is in one file and in flight. Shrinks from the front as bytes arrive.
struct Piece {
  const Transfer& transfer() const { return *place; }

  std::list<Transfer>::iterator place;
  size_t lane = 0;
  Bytes lane_charge;
  int fd = -1;
  Bytes file_offset;
  char* memory = nullptr;
  Bytes size;
  int attempts = 0;  // In a row that moved nothing.
};

// What has ended, and how. To be called outside locks.
struct Completion {
  Disk::Done done;
  absl::Status status;
};

class Lanes {
 public:
  Lanes(std::shared_ptr<const StoreTable> stores, const LaneOptions& options);

  // REQUIRES: request is aligned, not empty and inside its store.
  void Add(Transfer transfer);

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
  struct Cursor {
    std::list<Transfer>::iterator transfer;
    Bytes next;  // Offset in the store.
  };
  struct Lane {
    std::deque<Cursor> cursors;
    Bytes in_flight;
    bool full = false;  // Starts nothing until half is left.
  };

  size_t LaneOf(size_t directory, DiskTransfer::Direction direction) const;
  Piece* Cut(size_t lane);
  // Nothing more is cut from a transfer that failed.
  void Abandon(std::list<Transfer>::iterator transfer);
  absl::Status Error(const Piece& piece, int error) const;
  void End(Piece* piece, absl::optional<Completion>* completion);

  const std::shared_ptr<const StoreTable> stores_;
  const Stripes stripes_;
  const LaneOptions options_;
  std::list<Transfer> transfers_;
  std::vector<Lane> lanes_;
  std::vector<Piece> pieces_;
  std::vector<Piece*> free_pieces_;
  size_t next_lane_ = 0;  // Round robin.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_LANES_H_

// Disk: the seam to the SSD pool.
//
// A disk hands out stores: sets of unlinked files (mode 0600, O_DIRECT), striped over the disk's
// directories by their speed, that vanish with the last process that has them open, unless a
// snapshot of a durable job has given them names. Transfers are
// whole chunks; the implementation cuts them into pieces, keeps a few in flight, resubmits short
// completions, and calls `done` exactly once. Implementations: UringDisk (io_uring with registered
// buffers), ThreadDisk (pread/pwrite on a pool of threads, where io_uring is refused), and in tests
// FaultyDisk, whose n-th operation is late, fails, tears, or lies.
//
// Threads: every method may be called from any thread; `done` is called from a thread of the disk's
// and must not block. Errors: RESOURCE_EXHAUSTED for a full disk, DATA_LOSS for a read that the
// medium failed, INTERNAL otherwise, each naming directory, offset, size and errno.
#ifndef MEMTIDE_DAEMON_IO_DISK_H_
#define MEMTIDE_DAEMON_IO_DISK_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "daemon/io/owned_fd.h"
#include "daemon/io/stripes.h"

namespace memtide {

struct DiskTransfer {
  enum class Direction { kRead, kWrite };
  Direction direction = Direction::kRead;
  StoreId store;
  // Offset in the store. offset, size and memory are multiples of kDiskAlignment.
  Bytes offset;
  Bytes size;
  char* memory = nullptr;
  // For Expedite. Unique among the transfers that have not ended, where Expedite is used.
  TransferId id;
  // Drives are shared fairly between jobs.
  JobId job;
  // A call waits for the transfer: it precedes those of the same direction that none waits for.
  bool awaited = false;
};

// A directory of a disk, and its part of the stores that are made now.
struct DiskDirectory {
  std::string path;
  double bytes_per_second = 0;  // As measured; zero: not measured.
  uint32_t stripes = 0;         // Its part of each cycle (Stripes).
};

inline constexpr Bytes kDiskAlignment = KiB(4);

class Disk {
 public:
  using Done = std::function<void(absl::Status)>;

  virtual ~Disk() = default;  // Waits for what is in flight. Not from a `done`.

  // "io_uring, registered buffers, /var/lib/memtide": for logs.
  virtual std::string Describe() const = 0;
  virtual std::vector<DiskDirectory> Directories() const = 0;

  // Makes files of `size` bytes in all, with their blocks reserved, so that a later write cannot
  // fail for lack of space. RESOURCE_EXHAUSTED names directory and sizes.
  virtual absl::Status MakeStore(StoreId store, Bytes size) = 0;
  // REQUIRES: nothing in flight for it.
  virtual void DropStore(StoreId store) = 0;

  // The files of a store, one per directory, to outlive the process; and a store made of the files
  // of an earlier process, with the bytes of its last completed transfer. DATA_LOSS if they differ
  // from the files that MakeStore made, in as many directories, with these stripes.
  virtual std::vector<int> Files(StoreId store) const = 0;
  // `counts`: the StripesOf(store) of then.
  virtual absl::Status AdoptStore(StoreId store, Bytes size, StripeCounts counts,
                                  std::vector<OwnedFd> files) = 0;
  // How the store is striped: as it was made, whatever stores are made like now. Empty if there is
  // no such store.
  virtual StripeCounts StripesOf(StoreId store) const = 0;

  // Puts what was written to the stores on stable storage, and then `text`, as the snapshot of the
  // job in place of its last one (snapshot_files.h, with the errors). Blocks for as long as the
  // drive takes. REQUIRES: the stores exist.
  virtual absl::Status SaveSnapshot(JobId job, const std::vector<StoreId>& stores,
                                    absl::string_view text) = 0;
  // Removes the snapshot and the names that the stores have by it.
  virtual absl::Status RemoveSnapshot(JobId job, const std::vector<StoreId>& stores) = 0;
  // Removes what a crash has left of other snapshots, and returns the stores that had names by them
  // (snapshot_files.h). `saved`: the stores that snapshots name which were read since the start.
  virtual absl::StatusOr<std::set<StoreId>> RemoveLeftSnapshots(const std::set<StoreId>& saved) = 0;
  // As AdoptStore, with the files that have names by a snapshot.
  virtual absl::Status AdoptNamedStore(StoreId store, Bytes size, StripeCounts counts) = 0;

  // Announces memory that transfers will use often, so that it can be registered with the kernel.
  // Transfers work without it. If the kernel refuses, Describe says so from then on.
  virtual void AddBuffer(char* memory, Bytes size) = 0;
  // Returns when the kernel has let go of the memory. Not from a `done`.
  // REQUIRES: nothing in flight for it.
  virtual void RemoveBuffer(char* memory) = 0;

  virtual void Start(const DiskTransfer& transfer, Done done) = 0;
  // From now on a call waits for the transfer with this id. Ignored if it has ended.
  virtual void Expedite(TransferId transfer) = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_DISK_H_

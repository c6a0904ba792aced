// Disk: the seam to the SSD pool.
//
// A disk hands out stores: sets of unlinked files (mode 0600, O_DIRECT), striped over the disk's
// directories, that vanish with the last process that has them open. Transfers are whole chunks;
// the implementation cuts them into pieces, keeps a few in flight, resubmits short completions, and
// calls `done` exactly once. Implementations: UringDisk (io_uring with registered buffers),
// ThreadDisk (pread/pwrite on a pool of threads, where io_uring is refused), and in tests
// FaultyDisk, which delays, fails or tears the n-th operation of another disk.
//
// Threads: every method may be called from any thread; `done` is called from a thread of the disk's
// and must not block. Errors: RESOURCE_EXHAUSTED for a full disk, DATA_LOSS for a read that the
// medium failed, INTERNAL otherwise, each naming directory, offset, size and errno.
#ifndef MEMTIDE_DAEMON_IO_DISK_H_
#define MEMTIDE_DAEMON_IO_DISK_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "daemon/io/owned_fd.h"

namespace memtide {

struct DiskTransfer {
  enum class Direction { kRead, kWrite };
  Direction direction = Direction::kRead;
  StoreId store;
  // Offset in the store. offset, size and memory are multiples of kDiskAlignment.
  Bytes offset;
  Bytes size;
  char* memory = nullptr;
};
inline constexpr Bytes kDiskAlignment = KiB(4);

class Disk {
 public:
  using Done = std::function<void(absl::Status)>;

  virtual ~Disk() = default;  // Waits for what is in flight. Not from a `done`.

  // "io_uring, registered buffers, /var/lib/memtide": for logs.
  virtual std::string Describe() const = 0;

  // Makes files of `size` bytes in all, with their blocks reserved, so that a later write cannot
  // fail for lack of space. RESOURCE_EXHAUSTED names directory and sizes.
  virtual absl::Status MakeStore(StoreId store, Bytes size) = 0;
  // REQUIRES: nothing in flight for it.
  virtual void DropStore(StoreId store) = 0;

  // The files of a store, one per directory, to outlive the process; and a store made of the files
  // of an earlier process, with the bytes of its last completed transfer. DATA_LOSS if they differ
  // from the files that MakeStore would make now.
  virtual std::vector<int> Files(StoreId store) const = 0;
  virtual absl::Status AdoptStore(StoreId store, Bytes size, std::vector<OwnedFd> files) = 0;

  // Announces memory that transfers will use often, so that it can be registered with the kernel.
  // Transfers work without it. If the kernel refuses, Describe says so from then on.
  virtual void AddBuffer(char* memory, Bytes size) = 0;
  // Returns when the kernel has let go of the memory. Not from a `done`.
  // REQUIRES: nothing in flight for it.
  virtual void RemoveBuffer(char* memory) = 0;

  virtual void Start(const DiskTransfer& transfer, Done done) = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_DISK_H_

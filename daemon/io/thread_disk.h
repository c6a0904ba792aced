// ThreadDisk: a Disk on threads that block in pread and pwrite.
//
// For where io_uring is refused (container runtimes' seccomp profiles, kernel.io_uring_disabled).
// The same cutting and bounds as UringDisk, with a thread for each large piece that may be in
// flight. Thread-safe, except that the destructor must not be called from a `done`.
#ifndef MEMTIDE_DAEMON_IO_THREAD_DISK_H_
#define MEMTIDE_DAEMON_IO_THREAD_DISK_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "daemon/io/disk.h"
#include "daemon/io/lanes.h"
#include "daemon/io/store_table.h"

namespace memtide {

class ThreadDisk : public Disk {
 public:
  // `why` is shown by Describe: what speaks against io_uring.
  ThreadDisk(std::shared_ptr<StoreTable> stores, const LaneOptions& options, std::string why);
  ~ThreadDisk() override;

  std::string Describe() const override;
  absl::Status MakeStore(StoreId store, Bytes size) override;
  void DropStore(StoreId store) override;
  std::vector<int> Files(StoreId store) const override;
  absl::Status AdoptStore(StoreId store, Bytes size, std::vector<OwnedFd> files) override;
  void AddBuffer(char* memory, Bytes size) override {}
  void RemoveBuffer(char* memory) override {}
  void Start(const DiskTransfer& transfer, Done done) override;

 private:
  void Work();
  // A piece to work on, or null when the disk is to end and nothing is left.
  Piece* AwaitPiece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<StoreTable> stores_;
  const std::string why_;
  Mutex mutex_;
  CondVar changed_;
  Lanes lanes_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_THREAD_DISK_H_

// ThreadDisk: a Disk on threads that block in pread and pwrite.
//
// Used where the kernel refuses io_uring (seccomp profiles of container runtimes,
// kernel.io_uring_disabled). It cuts and bounds transfers as UringDisk does, with one thread per
// large piece that may be in flight.
//
// Thread safety: thread-safe, except that the destructor must not be called from a `done`.
#ifndef MEMTIDE_DAEMON_IO_THREAD_DISK_H_
#define MEMTIDE_DAEMON_IO_THREAD_DISK_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "daemon/io/io_scheduler.h"
#include "daemon/io/stored_disk.h"

namespace memtide {

class ThreadDisk : public StoredDisk {
 public:
  // Describe shows `why`, the reason for not using io_uring.
  ThreadDisk(std::shared_ptr<StoreTable> stores, const IoSchedulerOptions& options,
             std::string why);
  ~ThreadDisk() override;

  std::string Describe() const override;
  void AddBuffer(char* memory, Bytes size) override {}
  void RemoveBuffer(char* memory) override {}
  void Start(const DiskTransfer& transfer, Done done) override;
  void Expedite(TransferId transfer) override;

 private:
  void Work();
  // Waits for the next piece. Null when the disk is closing and no piece is left.
  Piece* AwaitPiece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string why_;
  Mutex mutex_;
  CondVar changed_;
  IoScheduler scheduler_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_THREAD_DISK_H_

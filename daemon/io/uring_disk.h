// UringDisk: a Disk on io_uring.
//
// One thread owns the ring, cuts the transfers and calls `done`. Other threads send it commands
// through an inbox, which the engine bounds, and an eventfd that the ring reads. The ring has room
// for every piece that may be in flight, so its queues cannot overflow; the other transfers wait in
// the IoScheduler. Announced memory is registered with the kernel, which saves two thirds of the
// CPU time; if the kernel refuses (RLIMIT_MEMLOCK without CAP_IPC_LOCK), transfers work without it,
// and Describe says so.
//
// Thread safety: thread-safe, except that RemoveBuffer and the destructor wait for the ring's
// thread and so must not be called from a `done`.
#ifndef MEMTIDE_DAEMON_IO_URING_DISK_H_
#define MEMTIDE_DAEMON_IO_URING_DISK_H_

#include <memory>
#include <string>

#include "daemon/io/io_scheduler.h"
#include "daemon/io/stored_disk.h"

namespace memtide {

class UringDisk : public StoredDisk {
 public:
  // UNAVAILABLE if the kernel, or the sandbox of this process, refuses io_uring.
  static absl::StatusOr<std::unique_ptr<UringDisk>> Create(std::shared_ptr<StoreTable> stores,
                                                           const IoSchedulerOptions& options);
  ~UringDisk() override;

  std::string Describe() const override;
  void AddBuffer(char* memory, Bytes size) override;
  void RemoveBuffer(char* memory) override;
  void Start(const DiskTransfer& transfer, Done done) override;
  void Expedite(TransferId transfer) override;

 private:
  class Ring;
  UringDisk(std::shared_ptr<StoreTable> stores, std::unique_ptr<Ring> ring);

  const std::unique_ptr<Ring> ring_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_URING_DISK_H_

// FaultyDisk: another disk whose n-th transfer fails, tears, is held back, or lies, for tests.
//
// Transfers are counted from zero in the order of Start, stores in the order of MakeStore. A failed
// transfer does not reach the disk. A torn one moves its first half, then fails. A held one starts
// when it is released, after any that came later: so operations are delayed and reordered at will.
// One that lies ends well, and has not moved the bytes that it says to have moved.
// Thread-safe; `disk` must outlive it; the destructor starts what is still held.
#ifndef MEMTIDE_DAEMON_IO_TESTING_FAULTY_DISK_H_
#define MEMTIDE_DAEMON_IO_TESTING_FAULTY_DISK_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "daemon/io/disk.h"

namespace memtide {

class FaultyDisk : public Disk {
 public:
  explicit FaultyDisk(Disk* disk) : disk_(disk) {}
  ~FaultyDisk() override { Release(); }

  void FailTransfer(uint64_t transfer, absl::Status status);
  void TearTransfer(uint64_t transfer, absl::Status status);
  void HoldTransfer(uint64_t transfer);
  enum class Lie {
    kFlip,       // One bit in the middle is another.
    kMisdirect,  // It uses the place of its size that follows in the store.
    kForget,     // Nothing is moved.
    kTear,       // Only the first half is.
  };
  void LieAbout(uint64_t transfer, Lie lie);
  // Waits until `count` transfers have been started, held ones included.
  void AwaitTransfers(uint64_t count);
  // Starts the held transfers, the last first, and holds no more.
  void Release();
  void FailStore(uint64_t store, absl::Status status);

  std::string Describe() const override { return disk_->Describe() + ", with faults"; }
  std::vector<DiskDirectory> Directories() const override { return disk_->Directories(); }
  absl::Status MakeStore(StoreId store, Bytes size) override;
  void DropStore(StoreId store) override { disk_->DropStore(store); }
  std::vector<int> Files(StoreId store) const override { return disk_->Files(store); }
  absl::Status AdoptStore(StoreId store, Bytes size, StripeCounts counts,
                          std::vector<OwnedFd> files) override {
    return disk_->AdoptStore(store, size, std::move(counts), std::move(files));
  }
  StripeCounts StripesOf(StoreId store) const override { return disk_->StripesOf(store); }
  absl::Status SaveSnapshot(JobId job, const std::vector<StoreId>& stores,
                            absl::string_view text) override {
    return disk_->SaveSnapshot(job, stores, text);
  }
  absl::Status RemoveSnapshot(JobId job, const std::vector<StoreId>& stores) override {
    return disk_->RemoveSnapshot(job, stores);
  }
  absl::StatusOr<std::set<StoreId>> RemoveLeftSnapshots(const std::set<StoreId>& saved) override {
    return disk_->RemoveLeftSnapshots(saved);
  }
  absl::Status AdoptNamedStore(StoreId store, Bytes size, StripeCounts counts) override {
    return disk_->AdoptNamedStore(store, size, std::move(counts));
  }
  void AddBuffer(char* memory, Bytes size) override { disk_->AddBuffer(memory, size); }
  void RemoveBuffer(char* memory) override { disk_->RemoveBuffer(memory); }
  void Start(const DiskTransfer& transfer, Done done) override;
  void Start(const DiskTransfer& transfer, Lie lie, Done done);
  void Expedite(TransferId transfer) override { disk_->Expedite(transfer); }

 private:
  struct Held {
    DiskTransfer transfer;
    Done done;
  };

  Disk* const disk_;
  Mutex mutex_;
  CondVar changed_;
  uint64_t transfers_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t stores_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, absl::Status> tears_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Lie> lies_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, absl::Status> store_failures_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> to_hold_ ABSL_GUARDED_BY(mutex_);
  std::vector<Held> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_TESTING_FAULTY_DISK_H_

// MoverFixture: a Mover over an emulated device and a disk, both with faults, and what it posts.
// For tests, from one thread.
#ifndef MEMTIDE_DAEMON_MOVER_TESTING_MOVER_FIXTURE_H_
#define MEMTIDE_DAEMON_MOVER_TESTING_MOVER_FIXTURE_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "base/mutex.h"
#include "daemon/device/emulated_device.h"
#include "daemon/device/testing/faulty_device.h"
#include "daemon/io/open_disk.h"
#include "daemon/io/testing/faulty_disk.h"
#include "daemon/io/testing/scratch_directory.h"
#include "daemon/mover/mover.h"
#include "gtest/gtest.h"

namespace memtide {

// Collects what the mover posts. An event that comes twice ends the test.
class Inbox {
 public:
  void Post(Event event) {
    MutexLock lock(&mutex_);
    if (const auto* done = std::get_if<TransferDone>(&event)) {
      Put("transfer " + std::to_string(done->transfer.value()), done->status);
    } else if (const auto* step = std::get_if<StepDone>(&event)) {
      Put("step " + std::to_string(step->step.value()), step->status);
    } else if (const auto* made = std::get_if<RegionMade>(&event)) {
      Put("region " + std::to_string(made->region.value()), made->status);
    } else if (const auto* dropped = std::get_if<RegionDropped>(&event)) {
      Put("no region " + std::to_string(dropped->region.value()), absl::OkStatus());
    } else if (const auto* emptied = std::get_if<SlotReleased>(&event)) {
      Put("emptied " + std::to_string(emptied->place.offset.count() >> 21), absl::OkStatus());
    } else if (const auto* filled = std::get_if<SlotPopulated>(&event)) {
      Put("filled " + std::to_string(filled->place.offset.count() >> 21), filled->status);
    } else if (const auto* made = std::get_if<StoreMade>(&event)) {
      Put("store " + std::to_string(made->store.value()), made->status);
    } else if (const auto* dropped = std::get_if<StoreDropped>(&event)) {
      Put("no store " + std::to_string(dropped->store.value()), absl::OkStatus());
    } else {
      ADD_FAILURE() << "an event that is not the mover's";
    }
    changed_.SignalAll();
  }

  absl::Status Await(const std::string& what) {
    MutexLock lock(&mutex_);
    while (answers_.count(what) == 0) changed_.Wait(&mutex_);
    return answers_[what];
  }
  size_t count() {
    MutexLock lock(&mutex_);
    return answers_.size();
  }
  // Whether it was posted, and as the how-manieth event.
  absl::optional<size_t> PlaceOf(const std::string& what) {
    MutexLock lock(&mutex_);
    const auto found = places_.find(what);
    return found == places_.end() ? absl::nullopt : absl::make_optional(found->second);
  }

 private:
  void Put(const std::string& what, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    EXPECT_TRUE(answers_.emplace(what, std::move(status)).second) << what << " came twice";
    places_.emplace(what, places_.size());
  }

  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, absl::Status> answers_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, size_t> places_ ABSL_GUARDED_BY(mutex_);
};

class MoverFixture : public testing::Test {
 protected:
  using Kind = StartTransfer::Kind;

  static constexpr RegionId kHost{1}, kDevice{2};
  static constexpr StoreId kStore{1};
  static constexpr Bytes kSlot = MiB(2);
  static constexpr int kSlots = 8;

  MoverFixture() {
    DiskOptions options;
    options.directories = {directory_.path()};
    real_disk_ = *OpenDisk(options);
    disk_ = std::make_unique<FaultyDisk>(real_disk_.get());
    mover_ = std::make_unique<Mover>(std::vector<Device*>{&device_}, disk_.get(),
                                     [this](Event event) { inbox_.Post(std::move(event)); });
  }

  // A host region, a device region and a store, each of kSlots slots. Operation 0 of the device.
  void MakeAll() {
    mover_->Start(MakeRegion{kHost, {Tier::kHost}, 0, kSlot * kSlots, kSlot});
    mover_->Start(MakeRegion{kDevice, {Tier::kDevice}, 0, kSlot * kSlots, kSlot});
    mover_->Start(MakeStore{kStore, kSlot * kSlots});
    ASSERT_EQ(inbox_.Await("region 1"), absl::OkStatus());
    ASSERT_EQ(inbox_.Await("region 2"), absl::OkStatus());
    ASSERT_EQ(inbox_.Await("store 1"), absl::OkStatus());
  }

  // Slot `host` of the host region with slot `other` of the device region, or of the store.
  std::string Begin(Kind kind, int host, int other, JobId job = JobId()) {
    StartTransfer transfer;
    transfer.job = job;
    transfer.transfer = TransferId(next_++);
    transfer.kind = kind;
    transfer.size = kSlot;
    const MemoryPlace on_host{kHost, kSlot * host}, on_device{kDevice, kSlot * other};
    const bool to_host = kind == Kind::kDeviceToHost || kind == Kind::kSsdToHost ||
                         kind == Kind::kCompareDeviceWithHost;
    transfer.from = to_host ? on_device : on_host;
    transfer.to = to_host || kind == Kind::kZero ? on_host : on_device;
    transfer.store = {kStore, kSlot * other};
    mover_->Start(transfer);
    return "transfer " + std::to_string(transfer.transfer.value());
  }
  absl::Status Move(Kind kind, int host, int other) {
    return inbox_.Await(Begin(kind, host, other));
  }
  std::string BeginZero(RegionId region, int slot) {
    StartTransfer transfer;
    transfer.transfer = TransferId(next_++);
    transfer.kind = Kind::kZero;
    transfer.size = kSlot;
    transfer.to = {region, kSlot * slot};
    mover_->Start(transfer);
    return "transfer " + std::to_string(transfer.transfer.value());
  }

  EmulatedDevice emulated_{EmulatedDeviceOptions{}};
  FaultyDevice device_{&emulated_};
  ScratchDirectory directory_;
  std::unique_ptr<Disk> real_disk_;
  std::unique_ptr<FaultyDisk> disk_;
  Inbox inbox_;
  std::unique_ptr<Mover> mover_;
  uint64_t next_ = 1;
};

// A client's view of a region.
class Mapping {
 public:
  Mapping(const Mover& mover, RegionId region) {
    const absl::StatusOr<MemoryExport> memory = mover.Export(region);
    EXPECT_TRUE(memory.ok()) << memory.status();
    size_ = memory->size;
    data_ = static_cast<char*>(
        mmap(nullptr, size_.count(), PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0));
    EXPECT_NE(data_, MAP_FAILED);
    close(memory->fd);
  }
  ~Mapping() { munmap(data_, size_.count()); }

  char* data() const { return data_; }
  void Fill(int slot, char value, Bytes size) {
    memset(data_ + slot * size.count(), value, size.count());
  }
  bool Holds(int slot, char value, Bytes size) const {
    return std::string(data_ + slot * size.count(), size.count()) ==
           std::string(size.count(), value);
  }

 private:
  Bytes size_;
  char* data_ = nullptr;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_MOVER_TESTING_MOVER_FIXTURE_H_

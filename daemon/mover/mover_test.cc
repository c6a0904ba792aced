#include "daemon/mover/mover.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "daemon/device/emulated_device.h"
#include "daemon/device/testing/faulty_device.h"
#include "daemon/io/open_disk.h"
#include "daemon/io/testing/faulty_disk.h"
#include "daemon/io/testing/scratch_directory.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using Kind = StartTransfer::Kind;

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

 private:
  void Put(const std::string& what, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    EXPECT_TRUE(answers_.emplace(what, std::move(status)).second) << what << " came twice";
  }

  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, absl::Status> answers_ ABSL_GUARDED_BY(mutex_);
};

class MoverTest : public testing::Test {
 protected:
  static constexpr RegionId kHost{1}, kDevice{2};
  static constexpr StoreId kStore{1};
  static constexpr Bytes kSlot = MiB(2);
  static constexpr int kSlots = 8;

  MoverTest() {
    DiskOptions options;
    options.directories = {directory_.path()};
    real_disk_ = *OpenDisk(options);
    disk_ = std::make_unique<FaultyDisk>(real_disk_.get());
    mover_ = std::make_unique<Mover>(&device_, disk_.get(),
                                     [this](Event event) { inbox_.Post(std::move(event)); });
  }

  // A host region, a device region and a store, each of kSlots slots. Operation 0 of the device.
  void MakeAll() {
    mover_->Start(MakeRegion{kHost, Tier::kHost, 0, kSlot * kSlots, kSlot});
    mover_->Start(MakeRegion{kDevice, Tier::kDevice, 0, kSlot * kSlots, kSlot});
    mover_->Start(MakeStore{kStore, kSlot * kSlots});
    ASSERT_EQ(inbox_.Await("region 1"), absl::OkStatus());
    ASSERT_EQ(inbox_.Await("region 2"), absl::OkStatus());
    ASSERT_EQ(inbox_.Await("store 1"), absl::OkStatus());
  }

  // Slot `host` of the host region with slot `other` of the device region, or of the store.
  std::string Begin(Kind kind, int host, int other) {
    StartTransfer transfer;
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

TEST_F(MoverTest, CopiesAreComparedAndKept) {
  MakeAll();
  Mapping host(*mover_, kHost), device(*mover_, kDevice);
  host.Fill(1, 'a', kSlot);
  device.Fill(2, 'a', kSlot);
  EXPECT_EQ(Move(Kind::kCompareDeviceWithHost, 1, 2), absl::OkStatus());
  device.Fill(3, 'b', kSlot);
  const absl::Status differ = Move(Kind::kCompareDeviceWithHost, 1, 3);
  EXPECT_EQ(differ.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(differ.message().find("at byte 0"), absl::string_view::npos) << differ;
  EXPECT_TRUE(host.Holds(1, 'a', kSlot));
  EXPECT_TRUE(device.Holds(3, 'b', kSlot));
}

TEST_F(MoverTest, AChunkGoesDownToTheDiskAndUpToTheDevice) {
  MakeAll();
  Mapping host(*mover_, kHost), device(*mover_, kDevice);
  device.Fill(3, 'c', kSlot);
  EXPECT_EQ(Move(Kind::kDeviceToHost, 1, 3), absl::OkStatus());
  EXPECT_TRUE(host.Holds(1, 'c', kSlot));
  EXPECT_TRUE(host.Holds(0, '\0', kSlot));
  EXPECT_EQ(Move(Kind::kHostToSsd, 1, 5), absl::OkStatus());
  host.Fill(1, '#', kSlot);
  EXPECT_EQ(Move(Kind::kSsdToHost, 2, 5), absl::OkStatus());
  EXPECT_TRUE(host.Holds(2, 'c', kSlot));
  EXPECT_EQ(Move(Kind::kHostToDevice, 2, 7), absl::OkStatus());
  EXPECT_TRUE(device.Holds(7, 'c', kSlot));
}

TEST_F(MoverTest, ASlotThatIsEmptiedHoldsNoMemoryUntilItIsFilledAgain) {
  MakeAll();
  Mapping host(*mover_, kHost);
  const auto blocks = [&] {
    const absl::StatusOr<MemoryExport> memory = mover_->Export(kHost);
    struct stat info;
    EXPECT_EQ(fstat(memory->fd, &info), 0);
    close(memory->fd);
    return Bytes(static_cast<uint64_t>(info.st_blocks) * 512);
  };
  for (int slot = 0; slot < kSlots; ++slot) host.Fill(slot, 'a', kSlot);
  EXPECT_EQ(Move(Kind::kHostToSsd, 3, 3), absl::OkStatus());
  ASSERT_EQ(blocks(), kSlot * kSlots);
  mover_->Start(ReleaseSlot{{kHost, kSlot * 3}, kSlot});
  mover_->Start(ReleaseSlot{{kHost, kSlot * 5}, kSlot});
  inbox_.Await("emptied 5").IgnoreError();
  EXPECT_EQ(blocks(), kSlot * (kSlots - 2));
  EXPECT_TRUE(host.Holds(4, 'a', kSlot));
  // Its neighbours move on meanwhile.
  EXPECT_EQ(Move(Kind::kHostToSsd, 4, 4), absl::OkStatus());
  mover_->Start(PopulateSlot{{kHost, kSlot * 3}, kSlot});
  EXPECT_EQ(inbox_.Await("filled 3"), absl::OkStatus());
  EXPECT_EQ(blocks(), kSlot * (kSlots - 1));
  EXPECT_EQ(Move(Kind::kSsdToHost, 3, 4), absl::OkStatus());
  EXPECT_TRUE(host.Holds(3, 'a', kSlot));
  EXPECT_EQ(Move(Kind::kHostToDevice, 3, 0), absl::OkStatus());
  // The region goes with one slot empty.
  mover_->Start(DropRegion{kHost});
  EXPECT_EQ(inbox_.Await("no region 1"), absl::OkStatus());
}

TEST_F(MoverTest, StepsAreComputedOnHostMemory) {
  MakeAll();
  Mapping host(*mover_, kHost);
  optimizer::SgdOptions sgd;
  sgd.lr = 0;
  optimizer::Work work;
  work.rule = sgd;
  optimizer::Piece piece;
  piece.elements = 1024;
  piece.gradient = {0, 0};
  piece.parameter = {1, 0};
  piece.new_parameter = {2, 0};
  work.pieces = {piece};
  work.copies = {{{1, 4096}, {2, 4096}, static_cast<uint64_t>(kSlot.count() - 4096)}};
  StartStep step{StepId(7), {}, kSlot, std::make_shared<const optimizer::Work>(work)};
  for (const int slot : {0, 3, 5}) step.chunks.push_back({kHost, kSlot * slot});
  host.Fill(3, '?', kSlot);  // 0x3f3f3f3f is 0.747.
  mover_->Start(step);
  EXPECT_EQ(inbox_.Await("step 7"), absl::OkStatus());
  EXPECT_TRUE(host.Holds(5, '?', kSlot));
  EXPECT_TRUE(host.Holds(4, '\0', kSlot));
}

TEST_F(MoverTest, ZeroesSlotsOfEitherTier) {
  MakeAll();
  Mapping host(*mover_, kHost), device(*mover_, kDevice);
  for (const int slot : {0, 1, 2}) {
    host.Fill(slot, 'x', kSlot);
    device.Fill(slot, 'x', kSlot);
  }
  EXPECT_EQ(inbox_.Await(BeginZero(kHost, 1)), absl::OkStatus());
  EXPECT_EQ(inbox_.Await(BeginZero(kDevice, 1)), absl::OkStatus());
  for (const Mapping* mapping : {&host, &device}) {
    EXPECT_TRUE(mapping->Holds(0, 'x', kSlot));
    EXPECT_TRUE(mapping->Holds(1, '\0', kSlot));
    EXPECT_TRUE(mapping->Holds(2, 'x', kSlot));
  }
}

TEST_F(MoverTest, EveryEffectIsAnsweredOnceAlsoWhenTheMoverEnds) {
  MakeAll();
  for (int slot = 0; slot < kSlots; ++slot) {
    Begin(Kind::kHostToSsd, slot, slot);
    Begin(Kind::kHostToDevice, slot, slot);
    BeginZero(kDevice, slot);
    Begin(Kind::kSsdToHost, slot, slot);
    Begin(Kind::kDeviceToHost, slot, slot);
  }
  mover_->Start(MakeRegion{RegionId(3), Tier::kHost, 0, kSlot, kSlot});
  mover_->Start(MakeStore{StoreId(2), kSlot});
  mover_.reset();
  EXPECT_EQ(inbox_.count(), 3u + 5 * kSlots + 2);
}

TEST_F(MoverTest, AFailureIsTheStatusOfItsTransferAndOfNoOther) {
  MakeAll();
  const absl::Status fault = absl::DataLossError("injected");
  device_.Fail(1, fault);
  EXPECT_EQ(Move(Kind::kHostToDevice, 0, 0), fault);
  EXPECT_EQ(Move(Kind::kHostToDevice, 0, 0), absl::OkStatus());
  device_.Fail(3, fault);
  EXPECT_EQ(Move(Kind::kDeviceToHost, 0, 0), fault);
  device_.Fail(4, fault);
  EXPECT_EQ(inbox_.Await(BeginZero(kDevice, 0)), fault);
  disk_->FailTransfer(0, fault);
  EXPECT_EQ(Move(Kind::kHostToSsd, 0, 0), fault);
  disk_->TearTransfer(1, fault);
  EXPECT_EQ(Move(Kind::kSsdToHost, 0, 0), fault);
  EXPECT_EQ(Move(Kind::kSsdToHost, 0, 0), absl::OkStatus());
}

TEST_F(MoverTest, WhatCannotBeMadeIsAnsweredWithTheReasonAndMayBeTriedAgain) {
  const absl::Status fault = absl::ResourceExhaustedError("injected");
  device_.Fail(0, fault);
  disk_->FailStore(0, fault);
  mover_->Start(MakeRegion{kDevice, Tier::kDevice, 0, kSlot, kSlot});
  mover_->Start(MakeRegion{RegionId(9), Tier::kHost, 0, GiB(uint64_t{1} << 20), kSlot});
  mover_->Start(MakeStore{kStore, kSlot});
  EXPECT_EQ(inbox_.Await("region 2"), fault);
  EXPECT_EQ(inbox_.Await("region 9").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(inbox_.Await("store 1"), fault);
  EXPECT_EQ(mover_->Export(kDevice).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(MoverTest, ADirectionDoesNotWaitForTheOtherNorForTheDisk) {
  MakeAll();
  device_.Hold(1);
  const std::string held = Begin(Kind::kHostToDevice, 0, 0);
  device_.AwaitHeld(1);
  EXPECT_EQ(Move(Kind::kDeviceToHost, 1, 1), absl::OkStatus());
  EXPECT_EQ(Move(Kind::kHostToSsd, 2, 2), absl::OkStatus());
  mover_->Start(MakeRegion{RegionId(3), Tier::kHost, 0, kSlot, kSlot});
  EXPECT_EQ(inbox_.Await("region 3"), absl::OkStatus());
  device_.Release();
  EXPECT_EQ(inbox_.Await(held), absl::OkStatus());
}

TEST_F(MoverTest, AMoverThatEndsWaitsForAHeldDiskTransfer) {
  MakeAll();
  disk_->HoldTransfer(0);
  Begin(Kind::kHostToSsd, 0, 0);
  disk_->AwaitTransfers(1);
  std::thread release([this] { disk_->Release(); });
  mover_.reset();
  EXPECT_EQ(inbox_.Await("transfer 1"), absl::OkStatus());
  release.join();
}

TEST_F(MoverTest, WhatIsDroppedIsGoneAndItsIdCanComeBack) {
  MakeAll();
  EXPECT_EQ(Move(Kind::kHostToSsd, 0, 0), absl::OkStatus());
  mover_->Start(DropRegion{kHost});
  mover_->Start(DropRegion{kDevice});
  mover_->Start(DropStore{kStore});
  EXPECT_EQ(inbox_.Await("no region 1"), absl::OkStatus());
  EXPECT_EQ(inbox_.Await("no region 2"), absl::OkStatus());
  EXPECT_EQ(inbox_.Await("no store 1"), absl::OkStatus());
  EXPECT_EQ(mover_->Export(kHost).status().code(), absl::StatusCode::kNotFound);
  mover_->Start(MakeRegion{RegionId(4), Tier::kHost, 0, kSlot, kSlot});
  EXPECT_EQ(inbox_.Await("region 4"), absl::OkStatus());
  const absl::StatusOr<MemoryExport> memory = mover_->Export(RegionId(4));
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->size, kSlot);
  close(memory->fd);
}

TEST_F(MoverTest, WhatIsDroppedHasNoMemoryAlsoForClientsThatHaveItsDescriptor) {
  MakeAll();
  for (const RegionId region : {kHost, kDevice}) {
    const absl::StatusOr<MemoryExport> exported = mover_->Export(region);
    ASSERT_TRUE(exported.ok()) << exported.status();
    Mapping client(*mover_, region);
    client.Fill(0, 'a', kSlot);
    const auto blocks = [&] {
      struct stat info;
      EXPECT_EQ(fstat(exported->fd, &info), 0);
      return Bytes(static_cast<uint64_t>(info.st_blocks) * 512);
    };
    ASSERT_EQ(blocks(), kSlot * kSlots);
    mover_->Start(DropRegion{region});
    ASSERT_EQ(inbox_.Await("no region " + std::to_string(region.value())), absl::OkStatus());
    EXPECT_EQ(blocks(), Bytes(0));
    EXPECT_TRUE(client.Holds(0, '\0', kSlot)) << "new memory, and the client's own";
    close(exported->fd);
  }
}

TEST_F(MoverTest, ATransferOutsideItsRegionIsABrokenInvariant) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  MakeAll();
  EXPECT_DEATH(Begin(Kind::kHostToDevice, kSlots, 0), "region 1");
  EXPECT_DEATH(BeginZero(RegionId(77), 0), "region 77");
}

// One is on its way while the other waits in the device's stream.
TEST_F(MoverTest, ADeviceThatTakesTwoCopiesAtOnceGetsTwo) {
  FaultyDevice two(&device_, /*copies_in_flight=*/2);
  mover_ = std::make_unique<Mover>(&two, disk_.get(),
                                   [this](Event event) { inbox_.Post(std::move(event)); });
  MakeAll();
  for (const Kind kind : {Kind::kHostToDevice, Kind::kDeviceToHost}) {
    const uint64_t first = kind == Kind::kHostToDevice ? 1 : 3;
    two.Hold(first);
    two.Hold(first + 1);
    const std::string a = Begin(kind, 0, 0), b = Begin(kind, 1, 1);
    two.AwaitHeld(first);
    two.AwaitHeld(first + 1);
    two.Release();
    EXPECT_EQ(inbox_.Await(a), absl::OkStatus());
    EXPECT_EQ(inbox_.Await(b), absl::OkStatus());
  }
  mover_.reset();
}

TEST(MoverWithoutEdgesTest, ANodeWithoutDeviceOrDiskSaysSo) {
  Inbox inbox;
  Mover mover(nullptr, nullptr, [&](Event event) { inbox.Post(std::move(event)); });
  mover.Start(MakeRegion{RegionId(1), Tier::kDevice, 0, MiB(2), MiB(2)});
  mover.Start(MakeStore{StoreId(1), MiB(2)});
  mover.Start(MakeRegion{RegionId(2), Tier::kHost, 0, MiB(2), MiB(2)});
  EXPECT_EQ(inbox.Await("region 1").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(inbox.Await("store 1").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(inbox.Await("region 2"), absl::OkStatus());
}

}  // namespace
}  // namespace memtide

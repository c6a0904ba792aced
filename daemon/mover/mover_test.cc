// How the Mover makes and drops memory, and ends.
#include "daemon/mover/mover.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/numa.h"
#include "daemon/mover/testing/mover_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

class MoverTest : public MoverFixture {};

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

TEST_F(MoverTest, WhatAClientTouchesInAnEmptySlotGoesWithTheNextSlotThatIsEmptied) {
  MakeAll();
  Mapping host(*mover_, kHost);
  for (int slot = 0; slot < kSlots; ++slot) host.Fill(slot, 'a', kSlot);
  mover_->Start(ReleaseSlot{{kHost, kSlot * 3}, kSlot});
  inbox_.Await("emptied 3").IgnoreError();
  host.Fill(3, 'b', kSlot);
  EXPECT_TRUE(host.Holds(3, 'b', kSlot));
  mover_->Start(ReleaseSlot{{kHost, kSlot * 5}, kSlot});
  inbox_.Await("emptied 5").IgnoreError();
  EXPECT_TRUE(host.Holds(3, '\0', kSlot));
  EXPECT_TRUE(host.Holds(4, 'a', kSlot));
}

TEST_F(MoverTest, ASlotThatIsBeingFilledIsNotEmptiedAgain) {
  Region region;
  region.slot = kSlot;
  region.host = *SharedMemory::Create("mover-test", kSlot * 3);
  region.empty.insert({uint64_t{0}, kSlot.count()});
  region.filling.insert(kSlot.count());
  ASSERT_TRUE(region.host->Empty(Bytes(0), kSlot * 2).ok());
  region.host->data()[0] = region.host->data()[kSlot.count()] = 'x';
  region.EmptyTouched();
  EXPECT_EQ(region.host->data()[0], '\0');
  EXPECT_EQ(region.host->data()[kSlot.count()], 'x');
}

TEST_F(MoverTest, ACopyOfARegionHasItsBytesAndItsHoles) {
  MakeAll();
  Mapping old(*mover_, kHost);
  for (int slot = 0; slot < kSlots; ++slot) old.Fill(slot, static_cast<char>('a' + slot), kSlot);
  mover_->Start(ReleaseSlot{{kHost, kSlot * 3}, kSlot});
  MakeRegion make{RegionId(4), {Tier::kHost}, 0, kSlot * kSlots, kSlot};
  make.copy_of = kHost;
  mover_->Start(make);
  ASSERT_EQ(inbox_.Await("region 4"), absl::OkStatus());
  mover_->Start(DropRegion{kHost});
  ASSERT_EQ(inbox_.Await("no region 1"), absl::OkStatus());
  // A process that has the old region mapped writes on.
  for (int slot = 0; slot < kSlots; ++slot) old.Fill(slot, 'z', kSlot);
  Mapping copy(*mover_, RegionId(4));
  const absl::StatusOr<MemoryExport> memory = mover_->Export(RegionId(4));
  struct stat info;
  ASSERT_EQ(fstat(memory->fd, &info), 0);
  close(memory->fd);
  EXPECT_EQ(Bytes(static_cast<uint64_t>(info.st_blocks) * 512), kSlot * (kSlots - 1));
  for (int slot = 0; slot < kSlots; ++slot) {
    EXPECT_TRUE(slot == 3 || copy.Holds(slot, static_cast<char>('a' + slot), kSlot)) << slot;
  }
  mover_->Start(PopulateSlot{{RegionId(4), kSlot * 3}, kSlot});
  EXPECT_EQ(inbox_.Await("filled 3"), absl::OkStatus());
}

TEST_F(MoverTest, ARegionForReadersIsLentToBeReadAndNoMore) {
  MakeRegion make{RegionId(4), {Tier::kHost}, 0, kSlot * 2, kSlot};
  make.read_only = true;
  mover_->Start(make);
  ASSERT_EQ(inbox_.Await("region 4"), absl::OkStatus());
  const absl::StatusOr<MemoryExport> memory = mover_->Export(RegionId(4));
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto map = [&](int protection) {
    return mmap(nullptr, kSlot.count(), protection, MAP_SHARED, memory->fd, 0);
  };
  EXPECT_EQ(map(PROT_READ | PROT_WRITE), MAP_FAILED);
  void* const read = map(PROT_READ);
  ASSERT_NE(read, MAP_FAILED);
  EXPECT_NE(mprotect(read, kSlot.count(), PROT_READ | PROT_WRITE), 0);
  // A reader sees the bytes that the daemon writes.
  StartStep step{StepId(8), {{RegionId(4), Bytes(0)}, {RegionId(4), kSlot}}, kSlot};
  step.contents = std::make_shared<const ContentWork>(ContentWork{{0}, {{0, 1}}, {{1, 0}}});
  mover_->Start(step);
  EXPECT_EQ(inbox_.Await("step 8"), absl::OkStatus());
  EXPECT_EQ(static_cast<const char*>(read)[0], 0);
  munmap(read, kSlot.count());
  close(memory->fd);
  mover_->Start(DropRegion{RegionId(4)});
  EXPECT_EQ(inbox_.Await("no region 4"), absl::OkStatus());
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
  mover_->Start(MakeRegion{RegionId(3), {Tier::kHost}, 0, kSlot, kSlot});
  mover_->Start(MakeStore{StoreId(2), kSlot});
  mover_.reset();
  EXPECT_EQ(inbox_.count(), 3u + 5 * kSlots + 2);
}

TEST_F(MoverTest, WhatCannotBeMadeIsAnsweredWithTheReasonAndMayBeTriedAgain) {
  const absl::Status fault = absl::ResourceExhaustedError("injected");
  device_.Fail(0, fault);
  disk_->FailStore(0, fault);
  mover_->Start(MakeRegion{kDevice, {Tier::kDevice}, 0, kSlot, kSlot});
  mover_->Start(MakeRegion{RegionId(9), {Tier::kHost}, 0, GiB(uint64_t{1} << 20), kSlot});
  mover_->Start(MakeStore{kStore, kSlot});
  EXPECT_EQ(inbox_.Await("region 2"), fault);
  EXPECT_EQ(inbox_.Await("region 9").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(inbox_.Await("store 1"), fault);
  EXPECT_EQ(mover_->Export(kDevice).status().code(), absl::StatusCode::kNotFound);
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
  mover_->Start(MakeRegion{RegionId(4), {Tier::kHost}, 0, kSlot, kSlot});
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

TEST(MoverWithoutEdgesTest, ANodeWithoutDeviceOrDiskSaysSo) {
  Inbox inbox;
  Mover mover({}, nullptr, [&](Event event) { inbox.Post(std::move(event)); });
  mover.Start(MakeRegion{RegionId(1), {Tier::kDevice}, 0, MiB(2), MiB(2)});
  mover.Start(MakeStore{StoreId(1), MiB(2)});
  mover.Start(MakeRegion{RegionId(2), {Tier::kHost}, 0, MiB(2), MiB(2)});
  EXPECT_EQ(inbox.Await("region 1").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(inbox.Await("store 1").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(inbox.Await("region 2"), absl::OkStatus());
}

// A device near which memory and threads are placed.
class PlacedDevice : public FaultyDevice {
 public:
  PlacedDevice(Device* device, NumaPlacement placement)
      : FaultyDevice(device), placement_(std::move(placement)) {}
  NumaPlacement placement() const override { return placement_; }

 private:
  const NumaPlacement placement_;
};

// The names of this process's threads that run on `cpu` alone.
std::set<std::string> ThreadsOn(int cpu) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    cpu_set_t cpus;
    const pid_t thread = std::stoi(entry.path().filename());
    if (sched_getaffinity(thread, sizeof(cpus), &cpus) != 0) continue;
    if (CPU_COUNT(&cpus) != 1 || !CPU_ISSET(cpu, &cpus)) continue;
    std::ifstream file(entry.path() / "comm");
    std::string name;
    std::getline(file, name);
    names.insert(name);
  }
  return names;
}

TEST_F(MoverTest, MemoryAndThreadsAreOnTheNodeOfTheDevice) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "there is one CPU";
  int cpu = CPU_SETSIZE - 1;
  while (!CPU_ISSET(cpu, &allowed)) --cpu;
  EXPECT_TRUE(ThreadsOn(cpu).empty());
  PlacedDevice placed(&device_, {0, {cpu}});
  mover_ = std::make_unique<Mover>(std::vector<Device*>{&placed}, disk_.get(),
                                   [this](Event event) { inbox_.Post(std::move(event)); });
  MakeAll();
  EXPECT_EQ(Move(Kind::kHostToDevice, 0, 0), absl::OkStatus());
  EXPECT_EQ(Move(Kind::kDeviceToHost, 0, 0), absl::OkStatus());
  EXPECT_EQ(Move(Kind::kCompareDeviceWithHost, 0, 0), absl::OkStatus());
  EXPECT_THAT(ThreadsOn(cpu), testing::IsSupersetOf({"memtide-in", "memtide-out", "memtide-checks",
                                                     "memtide-memory"}));
  Mapping host(*mover_, kHost);
  const auto preferred = PreferredNode(host.data());
  mover_.reset();
  if (!preferred.ok()) GTEST_SKIP() << "this sandbox forbids it: " << preferred.status();
  EXPECT_EQ(*preferred, 0);
}

// How often the thread of this name that runs on `cpu` alone had waited when it waited for work.
int WaitsOn(int cpu, const std::string& name) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    cpu_set_t cpus;
    const pid_t thread = std::stoi(entry.path().filename());
    if (sched_getaffinity(thread, sizeof(cpus), &cpus) != 0) continue;
    if (CPU_COUNT(&cpus) != 1 || !CPU_ISSET(cpu, &cpus)) continue;
    std::string line;
    std::ifstream comm(entry.path() / "comm");
    if (!std::getline(comm, line) || line != name) continue;
    while (true) {
      bool sleeps = false;
      std::ifstream status(entry.path() / "status");
      while (std::getline(status, line)) {
        if (line.rfind("State:", 0) == 0) sleeps = line.find('S', 6) != std::string::npos;
        if (sleeps && line.rfind("voluntary_ctxt_switches:", 0) == 0) {
          return std::stoi(line.substr(24));
        }
      }
      std::this_thread::yield();
    }
  }
  ADD_FAILURE() << name << " does not run on CPU " << cpu;
  return 0;
}

TEST_F(MoverTest, HostMemoryAndItsThreadsAreOnTheNodeOfTheJobsDevice) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "there is one CPU";
  int cpu = CPU_SETSIZE - 1;
  while (!CPU_ISSET(cpu, &allowed)) --cpu;
  // The second device's node is one that this machine may not have.
  PlacedDevice first(&device_, {0, {cpu}}), second(&device_, {1, {}});
  mover_ = std::make_unique<Mover>(std::vector<Device*>{&first, &second}, disk_.get(),
                                   [this](Event event) { inbox_.Post(std::move(event)); });
  constexpr RegionId kNearFirst{1}, kNearSecond{2}, kNearNone{3};
  for (const auto& [id, device] : std::map<RegionId, absl::optional<uint32_t>>{
           {kNearFirst, 0}, {kNearSecond, 1}, {kNearNone, absl::nullopt}}) {
    MakeRegion region{id, {Tier::kHost}, 0, kSlot, kSlot};
    region.near_device = device;
    mover_->Start(region);
    ASSERT_EQ(inbox_.Await("region " + std::to_string(id.value())), absl::OkStatus());
  }
  EXPECT_THAT(ThreadsOn(cpu), testing::IsSupersetOf({"memtide-steps", "memtide-zeroes"}));
  // A thread waits once more when it has done what it was given.
  const int before = WaitsOn(cpu, "memtide-zeroes");
  for (const RegionId id : {kNearSecond, kNearNone}) {
    ASSERT_EQ(inbox_.Await(BeginZero(id, 0)), absl::OkStatus());
  }
  EXPECT_EQ(WaitsOn(cpu, "memtide-zeroes"), before);
  ASSERT_EQ(inbox_.Await(BeginZero(kNearFirst, 0)), absl::OkStatus());
  while (WaitsOn(cpu, "memtide-zeroes") == before) std::this_thread::yield();

  const auto preferred = PreferredNode(Mapping(*mover_, kNearFirst).data());
  const auto of_none = PreferredNode(Mapping(*mover_, kNearNone).data());
  mover_.reset();
  if (!preferred.ok()) GTEST_SKIP() << "this sandbox forbids it: " << preferred.status();
  EXPECT_EQ(*preferred, 0);
  EXPECT_FALSE(of_none->has_value());
}

}  // namespace
}  // namespace memtide

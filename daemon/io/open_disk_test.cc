#include "daemon/io/open_disk.h"

#include <sys/syscall.h>

#include <cerrno>

#include "daemon/io/testing/disk_contract.h"
#include "daemon/io/testing/faulty_disk.h"
#include "daemon/io/testing/restrict_process.h"

namespace memtide {
namespace {

using ::testing::HasSubstr;

DiskContractParam Engine(std::string name, DiskEngine engine, size_t directories) {
  return {std::move(name), directories, [engine](const std::vector<std::string>& paths) {
            DiskOptions options;
            options.directories = paths;
            options.engine = engine;
            absl::StatusOr<std::unique_ptr<Disk>> disk = OpenDisk(options);
            EXPECT_TRUE(disk.ok()) << disk.status();
            return *std::move(disk);
          }};
}

// A disk that owns the one it wraps.
class Faultless : public Disk {
 public:
  explicit Faultless(std::unique_ptr<Disk> disk) : disk_(std::move(disk)), faulty_(disk_.get()) {}

  std::string Describe() const override { return faulty_.Describe(); }
  std::vector<DiskDirectory> Directories() const override { return faulty_.Directories(); }
  absl::Status MakeStore(StoreId store, Bytes size) override {
    return faulty_.MakeStore(store, size);
  }
  void DropStore(StoreId store) override { faulty_.DropStore(store); }
  std::vector<int> Files(StoreId store) const override { return faulty_.Files(store); }
  absl::Status AdoptStore(StoreId store, Bytes size, StripeCounts counts,
                          std::vector<OwnedFd> files) override {
    return faulty_.AdoptStore(store, size, std::move(counts), std::move(files));
  }
  StripeCounts StripesOf(StoreId store) const override { return faulty_.StripesOf(store); }
  absl::Status SaveSnapshot(JobId job, const std::vector<StoreId>& stores,
                            absl::string_view text) override {
    return faulty_.SaveSnapshot(job, stores, text);
  }
  absl::Status RemoveSnapshot(JobId job, const std::vector<StoreId>& stores) override {
    return faulty_.RemoveSnapshot(job, stores);
  }
  absl::StatusOr<std::set<StoreId>> RemoveLeftSnapshots(const std::set<StoreId>& saved) override {
    return faulty_.RemoveLeftSnapshots(saved);
  }
  absl::Status AdoptNamedStore(StoreId store, Bytes size, StripeCounts counts) override {
    return faulty_.AdoptNamedStore(store, size, std::move(counts));
  }
  void AddBuffer(char* memory, Bytes size) override { faulty_.AddBuffer(memory, size); }
  void RemoveBuffer(char* memory) override { faulty_.RemoveBuffer(memory); }
  void Start(const DiskTransfer& transfer, Done done) override {
    faulty_.Start(transfer, std::move(done));
  }
  void Expedite(TransferId transfer) override { faulty_.Expedite(transfer); }

 private:
  const std::unique_ptr<Disk> disk_;
  FaultyDisk faulty_;
};

DiskContractParam WithoutFaults(DiskContractParam param) {
  param.name += "Faultless";
  param.open = [open = param.open](const std::vector<std::string>& paths) {
    return std::unique_ptr<Disk>(std::make_unique<Faultless>(open(paths)));
  };
  return param;
}

INSTANTIATE_TEST_SUITE_P(All, DiskContract,
                         testing::Values(Engine("Uring", DiskEngine::kUring, 1),
                                         Engine("Uring3", DiskEngine::kUring, 3),
                                         Engine("Threads", DiskEngine::kThreads, 1),
                                         Engine("Threads3", DiskEngine::kThreads, 3),
                                         WithoutFaults(Engine("Uring", DiskEngine::kUring, 1))),
                         [](const auto& info) { return info.param.name; });

TEST(OpenDiskTest, WithoutADirectoryThereIsNoDisk) {
  EXPECT_EQ(OpenDisk({}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(OpenDiskTest, ADirectoryOfTwoIsRefusedAndTheOtherLetGo) {
  ScratchDirectory good, bad;
  ASSERT_EQ(mkdir((bad.path() + "/somebody").c_str(), 0700), 0);
  DiskOptions options;
  options.directories = {good.path(), bad.path()};
  EXPECT_EQ(OpenDisk(options).status().code(), absl::StatusCode::kFailedPrecondition);
  options.directories = {good.path()};
  EXPECT_TRUE(OpenDisk(options).ok());
}

TEST(OpenDiskTest, PrefersUring) {
  ScratchDirectory directory;
  DiskOptions options;
  options.directories = {directory.path()};
  EXPECT_THAT((*OpenDisk(options))->Describe(), HasSubstr("io_uring, "));
}

// Runs in a child, which exits with 0 when the disk works on threads and says why.
void UseADiskWithout(int error, const std::string& path, const char* name) {
  RefuseSystemCall(__NR_io_uring_setup, error);
  DiskOptions options;
  options.directories = {path};
  options.engine = DiskEngine::kUring;
  if (OpenDisk(options).status().code() != absl::StatusCode::kUnavailable) _exit(1);
  options.engine = DiskEngine::kBest;
  absl::StatusOr<std::unique_ptr<Disk>> disk = OpenDisk(options);
  if (!disk.ok()) _exit(2);
  const std::string described = (*disk)->Describe();
  if (described.find("threads (io_uring refused: " + std::string(name)) != 0) _exit(3);
  _exit((*disk)->MakeStore(StoreId(1), MiB(4)).ok() ? 0 : 4);
}

TEST(OpenDiskDeathTest, WhereUringIsRefusedThreadsServeAndSayWhy) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  ScratchDirectory directory;
  EXPECT_EXIT(UseADiskWithout(EPERM, directory.path(), "EPERM"), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(UseADiskWithout(ENOSYS, directory.path(), "ENOSYS"), testing::ExitedWithCode(0), "");
}

// Runs in a child: transfers work, and the description says that they cost more, and why. (Should
// other processes of this user have pinned what it may, then not even a ring can be had.)
void UseADiskThatMayNotPin(const std::string& path) {
  RefusePinning();
  DiskOptions options;
  options.directories = {path};
  absl::StatusOr<std::unique_ptr<Disk>> disk = OpenDisk(options);
  if (!disk.ok()) _exit(1);
  SharedMemory memory = *SharedMemory::Create("unpinned", MiB(2));
  (*disk)->AddBuffer(memory.data(), memory.size());
  if (!(*disk)->MakeStore(StoreId(1), MiB(2)).ok()) _exit(2);
  std::promise<absl::Status> result;
  DiskTransfer transfer;
  transfer.direction = DiskTransfer::Direction::kWrite;
  transfer.store = StoreId(1);
  transfer.size = MiB(2);
  transfer.memory = memory.data();
  (*disk)->Start(transfer, [&](absl::Status status) { result.set_value(status); });
  if (!result.get_future().get().ok()) _exit(3);
  (*disk)->RemoveBuffer(memory.data());
  const std::string described = (*disk)->Describe();
  for (const char* reason :
       {"buffers not registered (2 MiB refused with ENOMEM", "threads (io_uring refused: ENOMEM"}) {
    if (described.find(reason) != std::string::npos) _exit(0);
  }
  _exit(4);
}

TEST(OpenDiskDeathTest, WhereNothingMayBePinnedTransfersGoOnWithout) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  ScratchDirectory directory;
  EXPECT_EXIT(UseADiskThatMayNotPin(directory.path()), testing::ExitedWithCode(0), "");
}

class FaultyDiskTest : public testing::Test {
 protected:
  FaultyDiskTest() {
    DiskOptions options;
    options.directories = {directory_.path()};
    real_ = *OpenDisk(options);
    disk_ = std::make_unique<FaultyDisk>(real_.get());
    memset(memory_.data(), 'm', MiB(2).count());
  }
  std::future<absl::Status> Write(Bytes offset, Bytes size) {
    DiskTransfer transfer;
    transfer.direction = DiskTransfer::Direction::kWrite;
    transfer.store = StoreId(1);
    transfer.offset = offset;
    transfer.size = size;
    transfer.memory = memory_.data();
    auto result = std::make_shared<std::promise<absl::Status>>();
    disk_->Start(transfer, [result](absl::Status status) { result->set_value(status); });
    return result->get_future();
  }

  const absl::Status fault_ = absl::DataLossError("injected");
  ScratchDirectory directory_;
  SharedMemory memory_ = *SharedMemory::Create("faulty", MiB(2));
  std::unique_ptr<Disk> real_;
  std::unique_ptr<FaultyDisk> disk_;
};

TEST_F(FaultyDiskTest, FailsAndTearsTheTransfersOfTheirNumbersOnly) {
  ASSERT_TRUE(disk_->MakeStore(StoreId(1), MiB(2)).ok());
  disk_->FailTransfer(1, fault_);
  disk_->TearTransfer(2, fault_);
  EXPECT_EQ(Write(Bytes(0), MiB(2)).get(), absl::OkStatus());
  EXPECT_EQ(Write(Bytes(0), MiB(2)).get(), fault_);
  memset(memory_.data(), 't', MiB(2).count());
  EXPECT_EQ(Write(Bytes(0), MiB(2)).get(), fault_);
  DiskTransfer read;
  read.store = StoreId(1);
  read.size = MiB(2);
  read.memory = memory_.data();
  std::promise<absl::Status> result;
  disk_->Start(read, [&](absl::Status status) { result.set_value(status); });
  EXPECT_EQ(result.get_future().get(), absl::OkStatus());
  EXPECT_EQ(memory_.data()[MiB(1).count() - 1], 't');
  EXPECT_EQ(memory_.data()[MiB(1).count()], 'm');
}

TEST_F(FaultyDiskTest, LiesAboutTheTransfersOfTheirNumbersOnly) {
  ASSERT_TRUE(disk_->MakeStore(StoreId(1), MiB(4)).ok());
  using Lie = FaultyDisk::Lie;
  EXPECT_EQ(Write(Bytes(0), MiB(2)).get(), absl::OkStatus());
  EXPECT_EQ(Write(MiB(2), MiB(2)).get(), absl::OkStatus());
  const auto at = [&](Bytes offset) {
    DiskTransfer read;
    read.store = StoreId(1);
    read.offset = RoundDown(offset, MiB(2));
    read.size = MiB(2);
    SharedMemory target = *SharedMemory::Create("read", MiB(2));
    read.memory = target.data();
    std::promise<absl::Status> result;
    disk_->Start(read, [&](absl::Status status) { result.set_value(status); });
    EXPECT_EQ(result.get_future().get(), absl::OkStatus());
    return target.data()[offset.count() % MiB(2).count()];
  };
  memset(memory_.data(), 't', MiB(2).count());
  disk_->LieAbout(2, Lie::kForget);
  EXPECT_EQ(Write(Bytes(0), MiB(2)).get(), absl::OkStatus());
  EXPECT_EQ(at(Bytes(0)), 'm');
  disk_->LieAbout(4, Lie::kMisdirect);
  EXPECT_EQ(Write(Bytes(0), MiB(2)).get(), absl::OkStatus());
  EXPECT_EQ(at(Bytes(0)), 'm');
  EXPECT_EQ(at(MiB(2)), 't');
  disk_->LieAbout(7, Lie::kTear);
  EXPECT_EQ(Write(Bytes(0), MiB(2)).get(), absl::OkStatus());
  EXPECT_EQ(at(MiB(1) - Bytes(1)), 't');
  EXPECT_EQ(at(MiB(1)), 'm');
  disk_->LieAbout(10, Lie::kFlip);
  EXPECT_EQ(Write(Bytes(0), MiB(2)).get(), absl::OkStatus());
  EXPECT_EQ(at(MiB(1)), 't' ^ 1);
  EXPECT_EQ(memory_.data()[MiB(1).count()], 't') << "the memory stays as it is";
  disk_->LieAbout(12, Lie::kFlip);
  EXPECT_EQ(at(MiB(1)), 't') << "both";
}

TEST_F(FaultyDiskTest, AHeldTransferIsOvertaken) {
  ASSERT_TRUE(disk_->MakeStore(StoreId(1), MiB(2)).ok());
  disk_->HoldTransfer(0);
  std::future<absl::Status> held = Write(Bytes(0), MiB(1));
  EXPECT_EQ(Write(MiB(1), MiB(1)).get(), absl::OkStatus());
  EXPECT_EQ(held.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  disk_->Release();
  EXPECT_EQ(held.get(), absl::OkStatus());
}

TEST_F(FaultyDiskTest, FailsTheStoreOfItsNumber) {
  disk_->FailStore(0, absl::ResourceExhaustedError("injected"));
  EXPECT_EQ(disk_->MakeStore(StoreId(1), MiB(2)), absl::ResourceExhaustedError("injected"));
  EXPECT_EQ(disk_->MakeStore(StoreId(1), MiB(2)), absl::OkStatus());
}

}  // namespace
}  // namespace memtide

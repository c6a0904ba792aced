#include "daemon/io/open_disk.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>

#include "daemon/io/disk_contract.h"
#include "daemon/io/faulty_disk.h"

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
  absl::Status MakeStore(StoreId store, Bytes size) override {
    return faulty_.MakeStore(store, size);
  }
  void DropStore(StoreId store) override { faulty_.DropStore(store); }
  void AddBuffer(char* memory, Bytes size) override { faulty_.AddBuffer(memory, size); }
  void RemoveBuffer(char* memory) override { faulty_.RemoveBuffer(memory); }
  void Start(const DiskTransfer& transfer, Done done) override {
    faulty_.Start(transfer, std::move(done));
  }

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

// As the default profiles of container runtimes do.
void RefuseIoUring(int error) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    _exit(77);
  }
}

// Runs in a child, which exits with 0 when the disk works on threads and says why.
void UseADiskWithout(int error, const std::string& path, const char* name) {
  RefuseIoUring(error);
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

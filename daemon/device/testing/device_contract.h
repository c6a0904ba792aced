// DeviceContract: the promises of Device, as a test suite to instantiate for each implementation.
#ifndef MEMTIDE_DAEMON_DEVICE_TESTING_DEVICE_CONTRACT_H_
#define MEMTIDE_DAEMON_DEVICE_TESTING_DEVICE_CONTRACT_H_

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/shared_memory.h"
#include "daemon/device/device.h"
#include "gtest/gtest.h"

namespace memtide {

// Exported memory, as a client maps it.
class Borrowed {
 public:
  virtual ~Borrowed() = default;
  virtual std::string Read(Bytes offset, Bytes size) = 0;
  virtual void Write(Bytes offset, const std::string& bytes) = 0;
};

// Memory of kSharedMemory, mapped in this process.
class BorrowedHere : public Borrowed {
 public:
  explicit BorrowedHere(const MemoryExport& exported) : size_(exported.size.count()) {
    EXPECT_EQ(exported.kind, MemoryKind::kSharedMemory);
    at_ = static_cast<char*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, exported.fd, 0));
    EXPECT_NE(at_, MAP_FAILED);
  }
  ~BorrowedHere() override { munmap(at_, size_); }
  std::string Read(Bytes offset, Bytes size) override {
    return std::string(at_ + offset.count(), size.count());
  }
  void Write(Bytes offset, const std::string& bytes) override {
    std::copy(bytes.begin(), bytes.end(), at_ + offset.count());
  }

 private:
  const size_t size_;
  char* at_ = nullptr;
};

// Host memory that is shared with a device, and holds these bytes.
class HostBuffer {
 public:
  HostBuffer(Device* device, const std::string& bytes)
      : device_(device),
        memory_(*SharedMemory::Create("contract", Bytes((bytes.size() / kPage + 1) * kPage))) {
    device->ShareHostMemory(memory_.data(), memory_.size(), memory_.fd());
    std::copy(bytes.begin(), bytes.end(), memory_.data());
  }
  ~HostBuffer() { device_->UnshareHostMemory(memory_.data()); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  char* data() const { return memory_.data(); }

 private:
  static constexpr size_t kPage = 2 << 20;

  Device* const device_;
  const SharedMemory memory_;
};

struct DeviceUnderTest {
  using Make = std::function<std::unique_ptr<Device>()>;
  using Borrow = std::function<std::unique_ptr<Borrowed>(const MemoryExport& exported)>;

  explicit DeviceUnderTest(Make make, MemoryKind kind = MemoryKind::kSharedMemory,
                           Borrow borrow = std::make_unique<BorrowedHere, const MemoryExport&>)
      : make(std::move(make)), kind(kind), borrow(std::move(borrow)) {}

  Make make;
  MemoryKind kind;
  Borrow borrow;
};

class DeviceContract : public testing::TestWithParam<DeviceUnderTest> {
 protected:
  std::unique_ptr<DeviceMemory> Allocate(Bytes size) {
    absl::StatusOr<std::unique_ptr<DeviceMemory>> memory =
        device_->Allocate("contract", size, GetParam().kind);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  std::string Read(const DeviceMemory& memory, Bytes offset, Bytes size) {
    const HostBuffer buffer(device_.get(), std::string(size.count(), '?'));
    const absl::Status status = device_->CopyOut(memory, offset, buffer.data(), size);
    EXPECT_TRUE(status.ok()) << status;
    return std::string(buffer.data(), size.count());
  }
  void Write(DeviceMemory& memory, Bytes offset, const std::string& bytes) {
    const HostBuffer buffer(device_.get(), bytes);
    const absl::Status status = device_->CopyIn(memory, offset, buffer.data(), Bytes(bytes.size()));
    EXPECT_TRUE(status.ok()) << status;
  }

  const std::unique_ptr<Device> device_ = GetParam().make();
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceContract);

TEST_P(DeviceContract, SaysWhatItIs) { EXPECT_FALSE(device_->Describe().empty()); }

TEST_P(DeviceContract, FreshMemoryReadsAsZeros) {
  const std::unique_ptr<DeviceMemory> memory = Allocate(MiB(2));
  EXPECT_EQ(memory->size(), MiB(2));
  EXPECT_EQ(Read(*memory, Bytes(0), MiB(2)), std::string(MiB(2).count(), '\0'));
}

TEST_P(DeviceContract, WhatIsCopiedInIsCopiedOutAndNothingElseChanges) {
  const std::unique_ptr<DeviceMemory> memory = Allocate(MiB(4));
  Write(*memory, Bytes(0), std::string(MiB(4).count(), 'a'));
  Write(*memory, MiB(1), std::string(MiB(2).count(), 'b'));
  EXPECT_EQ(Read(*memory, Bytes(0), MiB(4)), std::string(MiB(1).count(), 'a') +
                                                 std::string(MiB(2).count(), 'b') +
                                                 std::string(MiB(1).count(), 'a'));
}

TEST_P(DeviceContract, ZeroesExactlyTheRange) {
  const std::unique_ptr<DeviceMemory> memory = Allocate(MiB(2));
  Write(*memory, Bytes(0), std::string(MiB(2).count(), 'a'));
  ASSERT_TRUE(device_->Zero(*memory, KiB(4), MiB(1)).ok());
  EXPECT_EQ(Read(*memory, Bytes(0), MiB(2)), std::string(KiB(4).count(), 'a') +
                                                 std::string(MiB(1).count(), '\0') +
                                                 std::string(KiB(1020).count(), 'a'));
}

TEST_P(DeviceContract, KnowsItsKinds) {
  const std::vector<MemoryKind> kinds = device_->kinds();
  EXPECT_NE(std::find(kinds.begin(), kinds.end(), GetParam().kind), kinds.end());
}

TEST_P(DeviceContract, WhatIsExportedIsTheMemory) {
  const std::unique_ptr<DeviceMemory> memory = Allocate(MiB(2));
  EXPECT_EQ(memory->Export().kind, GetParam().kind);
  EXPECT_EQ(memory->Export().size, MiB(2));
  const std::unique_ptr<Borrowed> borrowed = GetParam().borrow(memory->Export());
  Write(*memory, KiB(8), "from-the-host");
  EXPECT_EQ(borrowed->Read(KiB(8), Bytes(13)), "from-the-host");
  borrowed->Write(Bytes(5), "c");
  EXPECT_EQ(Read(*memory, Bytes(5), Bytes(1)), "c");
}

TEST_P(DeviceContract, BothDirectionsWorkAtOnce) {
  const std::unique_ptr<DeviceMemory> memory = Allocate(MiB(4));
  Write(*memory, MiB(2), std::string(MiB(2).count(), 'o'));
  std::thread in([&] {
    for (int i = 0; i < 16; ++i) Write(*memory, Bytes(0), std::string(MiB(2).count(), 'a' + i));
  });
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(Read(*memory, MiB(2), MiB(2)), std::string(MiB(2).count(), 'o'));
  }
  in.join();
  EXPECT_EQ(Read(*memory, Bytes(0), MiB(2)), std::string(MiB(2).count(), 'a' + 15));
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_TESTING_DEVICE_CONTRACT_H_

// What every Device promises, as a suite to be instantiated with a way of making one.
#ifndef MEMTIDE_DAEMON_DEVICE_DEVICE_CONTRACT_H_
#define MEMTIDE_DAEMON_DEVICE_DEVICE_CONTRACT_H_

#include <sys/mman.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "daemon/device/device.h"
#include "gtest/gtest.h"

namespace memtide {

using DeviceFactory = std::function<std::unique_ptr<Device>()>;

class DeviceContract : public testing::TestWithParam<DeviceFactory> {
 protected:
  std::unique_ptr<DeviceMemory> Allocate(Bytes size) {
    absl::StatusOr<std::unique_ptr<DeviceMemory>> memory =
        device_->Allocate("contract", size, device_->kinds().front());
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  std::string Read(const DeviceMemory& memory, Bytes offset, Bytes size) {
    std::string bytes(size.count(), '?');
    const absl::Status status = device_->CopyOut(memory, offset, &bytes[0], size);
    EXPECT_TRUE(status.ok()) << status;
    return bytes;
  }
  void Write(DeviceMemory& memory, Bytes offset, const std::string& bytes) {
    const absl::Status status = device_->CopyIn(memory, offset, bytes.data(), Bytes(bytes.size()));
    EXPECT_TRUE(status.ok()) << status;
  }

  const std::unique_ptr<Device> device_ = GetParam()();
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

TEST_P(DeviceContract, TheDescriptorSharesTheMemory) {
  const std::unique_ptr<DeviceMemory> memory = Allocate(MiB(2));
  void* mapped =
      mmap(nullptr, MiB(2).count(), PROT_READ | PROT_WRITE, MAP_SHARED, memory->Export().fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  Write(*memory, KiB(8), "from the host");
  EXPECT_EQ(std::string(static_cast<char*>(mapped) + KiB(8).count(), 13), "from the host");
  static_cast<char*>(mapped)[5] = 'c';
  EXPECT_EQ(Read(*memory, Bytes(5), Bytes(1)), "c");
  munmap(mapped, MiB(2).count());
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

#endif  // MEMTIDE_DAEMON_DEVICE_DEVICE_CONTRACT_H_

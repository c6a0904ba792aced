#include "daemon/device/testing/faulty_device.h"

#include <string>
#include <thread>

#include "daemon/device/emulated_device.h"
#include "daemon/device/testing/device_contract.h"

namespace memtide {
namespace {

// Without faults it is the device that it wraps.
class Transparent : public FaultyDevice {
 public:
  Transparent() : FaultyDevice(&device_), device_(EmulatedDeviceOptions{}) {}

 private:
  EmulatedDevice device_;
};
std::unique_ptr<Device> Make() { return std::make_unique<Transparent>(); }
INSTANTIATE_TEST_SUITE_P(Faultless, DeviceContract, testing::Values(DeviceUnderTest(Make)));

TEST(FaultyDeviceTest, FailsTheOperationOfItsNumberOnlyAndLeavesTheMemoryAlone) {
  EmulatedDevice real{EmulatedDeviceOptions{}};
  FaultyDevice device(&real);
  device.Fail(1, absl::InternalError("injected"));
  auto memory = device.Allocate("memory", MiB(2), MemoryKind::kSharedMemory);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(device.CopyIn(**memory, Bytes(0), "x", Bytes(1)), absl::InternalError("injected"));
  char read = '?';
  ASSERT_TRUE(device.CopyOut(**memory, Bytes(0), &read, Bytes(1)).ok());
  EXPECT_EQ(read, '\0');
}

TEST(FaultyDeviceTest, AHeldOperationWaitsForItsRelease) {
  EmulatedDevice real{EmulatedDeviceOptions{}};
  FaultyDevice device(&real);
  device.Hold(1);
  auto memory = device.Allocate("memory", MiB(2), MemoryKind::kSharedMemory);
  ASSERT_TRUE(memory.ok());
  std::thread writer([&] { ASSERT_TRUE(device.CopyIn(**memory, Bytes(0), "x", Bytes(1)).ok()); });
  device.AwaitHeld(1);
  char read = '?';
  ASSERT_TRUE(device.CopyOut(**memory, Bytes(0), &read, Bytes(1)).ok());
  EXPECT_EQ(read, '\0');
  device.Release();
  writer.join();
  ASSERT_TRUE(device.CopyOut(**memory, Bytes(0), &read, Bytes(1)).ok());
  EXPECT_EQ(read, 'x');
}

}  // namespace
}  // namespace memtide

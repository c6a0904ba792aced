#include "daemon/device/emulated_device.h"

#include <string>
#include <thread>

#include "base/clock.h"
#include "daemon/device/testing/device_contract.h"

namespace memtide {
namespace {

std::unique_ptr<Device> MakeFast() {
  return std::make_unique<EmulatedDevice>(EmulatedDeviceOptions{});
}
std::unique_ptr<Device> MakeSlow() {
  EmulatedDeviceOptions options;
  options.bytes_per_second = Bytes(2'000'000'000);
  options.latency = std::chrono::microseconds(100);
  return std::make_unique<EmulatedDevice>(options);
}

INSTANTIATE_TEST_SUITE_P(Fast, DeviceContract, testing::Values(DeviceUnderTest(MakeFast)));
INSTANTIATE_TEST_SUITE_P(Slow, DeviceContract, testing::Values(DeviceUnderTest(MakeSlow)));

class LinkTest : public testing::Test {
 protected:
  LinkTest()
      : device_(Options()), memory_(*device_.Allocate("link", MiB(2), MemoryKind::kSharedMemory)) {}

  static EmulatedDeviceOptions Options() {
    EmulatedDeviceOptions options;
    options.capacity = MiB(96);
    options.bytes_per_second = MiB(100);
    options.latency = std::chrono::milliseconds(5);
    return options;
  }

  EmulatedDevice device_;
  const std::unique_ptr<DeviceMemory> memory_;
  std::string host_ = std::string(MiB(2).count(), 'h');
};

TEST_F(LinkTest, DescribesItsSpeed) {
  EXPECT_EQ(device_.Describe(), "emulated device, 96 MiB, 0.1 GB/s, 5000.0 us");
}

TEST_F(LinkTest, ACopyTakesAtLeastTheTimeOfTheLink) {
  const Instant start = Now();
  ASSERT_TRUE(device_.CopyIn(*memory_, Bytes(0), host_.data(), MiB(1)).ok());
  EXPECT_GE(Now() - start, std::chrono::milliseconds(15));
  const Instant middle = Now();
  ASSERT_TRUE(device_.CopyOut(*memory_, Bytes(0), &host_[0], MiB(2)).ok());
  EXPECT_GE(Now() - middle, std::chrono::milliseconds(25));
}

TEST_F(LinkTest, TwoCopiesInOneDirectionShareTheLink) {
  const Instant start = Now();
  std::thread other(
      [&] { ASSERT_TRUE(device_.CopyIn(*memory_, MiB(1), host_.data(), MiB(1)).ok()); });
  ASSERT_TRUE(device_.CopyIn(*memory_, Bytes(0), host_.data(), MiB(1)).ok());
  other.join();
  EXPECT_GE(Now() - start, std::chrono::milliseconds(25));
}

TEST_F(LinkTest, ZeroingTakesTheLatency) {
  const Instant start = Now();
  ASSERT_TRUE(device_.Zero(*memory_, Bytes(0), MiB(2)).ok());
  EXPECT_GE(Now() - start, std::chrono::milliseconds(5));
}

TEST_F(LinkTest, ARangeOutsideTheMemoryIsABrokenInvariant) {
  EXPECT_DEATH(device_.Zero(*memory_, MiB(1), MiB(2)).IgnoreError(), "has_value");
  EXPECT_DEATH(device_.Zero(*memory_, Bytes(UINT64_MAX), Bytes(1)).IgnoreError(), "has_value");
}

}  // namespace
}  // namespace memtide

// HostMemoryOf: what several devices together say of host memory.
#include "daemon/opened_devices.h"

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/types/optional.h"
#include "base/host_memory_use.h"
#include "daemon/device/emulated_device.h"
#include "daemon/device/testing/faulty_device.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

class DeviceOnNode : public FaultyDevice {
 public:
  DeviceOnNode(Device* device, absl::optional<int> node) : FaultyDevice(device), node_(node) {}
  HostMemoryUse host_memory() const override {
    HostMemoryUse use;
    use.pinned = MiB(8);
    use.staging = MiB(2);
    use.numa_node = node_;
    return use;
  }

 private:
  const absl::optional<int> node_;
};

HostMemoryUse Of(const std::vector<absl::optional<int>>& nodes) {
  EmulatedDevice emulated{EmulatedDeviceOptions{}};
  std::vector<OpenedDevice> devices(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    devices[i].device = std::make_unique<DeviceOnNode>(&emulated, nodes[i]);
  }
  return HostMemoryOf(devices);
}

TEST(HostMemoryOfTest, EachDevicePinsTheSameMemoryAndHasBuffersOfItsOwn) {
  const HostMemoryUse use = Of({0, 0, 0});
  EXPECT_EQ(use.pinned, MiB(8));
  EXPECT_EQ(use.staging, MiB(6));
}

TEST(HostMemoryOfTest, OnOneNodeItIsThere) {
  const HostMemoryUse use = Of({1, 1});
  EXPECT_EQ(use.numa_node, 1);
  EXPECT_TRUE(use.numa_node_by_device.empty());
}

TEST(HostMemoryOfTest, OnSeveralNodesItIsOnThatOfEachDevice) {
  const HostMemoryUse use = Of({0, 1, absl::nullopt, 0});
  EXPECT_FALSE(use.numa_node.has_value());
  EXPECT_EQ(use.numa_node_by_device, (std::map<uint32_t, int>{{0, 0}, {1, 1}, {3, 0}}));
}

TEST(HostMemoryOfTest, WithoutDevicesItIsAnywhere) {
  EXPECT_FALSE(Of({}).numa_node.has_value());
  EXPECT_TRUE(Of({absl::nullopt, absl::nullopt}).numa_node_by_device.empty());
}

}  // namespace
}  // namespace memtide

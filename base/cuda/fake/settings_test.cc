#include "base/cuda/fake/settings.h"

#include "gtest/gtest.h"

namespace memtide::fake_cuda {
namespace {

TEST(SettingsTest, WithoutSettingsThereIsOneUsableDevice) {
  const Settings settings = ReadSettings(nullptr);
  EXPECT_EQ(settings.devices, 1);
  EXPECT_EQ(settings.memory, GiB(1));
  EXPECT_EQ(settings.driver, Driver::kUsable);
  EXPECT_TRUE(ReadFaults(nullptr).empty());
}

TEST(SettingsTest, EverySettingIsRead) {
  const Settings settings = ReadSettings(
      "dir=/d,memory=256MiB,devices=2,name=N,driver=too-old,descriptors=no,legacy_ipc=no,"
      "compute_mode=exclusive,mps=yes,mig=yes,delay_us=7,cost_us:cuMemMap=3,pinned=5MiB,"
      "pinned_mb_s=12000,pageable_mb_s=4000,numa_node=1,pci=0000:17:00.0");
  EXPECT_EQ(settings.directory, "/d");
  EXPECT_EQ(settings.memory, MiB(256));
  EXPECT_EQ(settings.devices, 2);
  EXPECT_EQ(settings.name, "N");
  EXPECT_EQ(settings.driver, Driver::kTooOld);
  EXPECT_FALSE(settings.descriptors);
  EXPECT_FALSE(settings.legacy_ipc);
  EXPECT_EQ(settings.compute_mode, CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
  EXPECT_TRUE(settings.mps);
  EXPECT_TRUE(settings.mig);
  EXPECT_EQ(settings.delay, std::chrono::microseconds(7));
  EXPECT_EQ(settings.pinned, MiB(5));
  EXPECT_EQ(settings.pinned_rate, Bytes(12'000'000'000));
  EXPECT_EQ(settings.pageable_rate, Bytes(4'000'000'000));
  EXPECT_EQ(settings.numa_node, 1);
  EXPECT_EQ(settings.pci, "0000:17:00.0");
  ASSERT_EQ(settings.costs.size(), 1u);
  EXPECT_EQ(settings.costs.at("cuMemMap"), std::chrono::microseconds(3));
}

TEST(SettingsTest, FaultsAreCallsAndCodes) {
  const std::vector<Fault> faults = ReadFaults("cuMemCreate:3=2,cuMemcpyHtoDAsync:5=700");
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_EQ(faults[0].name, "cuMemCreate");
  EXPECT_EQ(faults[0].call, 3u);
  EXPECT_EQ(faults[0].code, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(faults[1].code, CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(SettingsTest, UnknownSettingsEndTheProcess) {
  EXPECT_DEATH(ReadSettings("memroy=1GiB"), "memroy");
  EXPECT_DEATH(ReadFaults("cuMemCreate=2"), "cuMemCreate");
}

TEST(SettingsTest, VisibleDevicesEndAtTheFirstThatIsNotThere) {
  using Devices = std::vector<int>;
  EXPECT_EQ(VisibleDevices(nullptr, 2), (Devices{0, 1}));
  EXPECT_EQ(VisibleDevices("", 2), Devices());
  EXPECT_EQ(VisibleDevices("1,0", 2), (Devices{1, 0}));
  EXPECT_EQ(VisibleDevices("1,5,0", 2), Devices{1});
  EXPECT_EQ(VisibleDevices("-1", 2), Devices());
  EXPECT_EQ(VisibleDevices(FormatCudaUuid(UuidOf(1)).c_str(), 2), Devices{1});
  EXPECT_EQ(VisibleDevices("GPU-fb", 2), Devices{1});
  EXPECT_EQ(VisibleDevices("MIG-fb", 2), Devices{1});
}

}  // namespace
}  // namespace memtide::fake_cuda

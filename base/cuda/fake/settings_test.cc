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
      "pinned_mb_s=12000,pageable_mb_s=4000,numa_node=1,pci=0000:17:00.0,card=/c,"
      "dilation=20");
  EXPECT_EQ(settings.card, "/c");
  EXPECT_EQ(settings.dilation, 20u);
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
  const Settings two = ReadSettings("devices=2");
  EXPECT_EQ(VisibleDevices(nullptr, two), (Devices{0, 1}));
  EXPECT_EQ(VisibleDevices("", two), Devices());
  EXPECT_EQ(VisibleDevices("1,0", two), (Devices{1, 0}));
  EXPECT_EQ(VisibleDevices("1,5,0", two), Devices{1});
  EXPECT_EQ(VisibleDevices("-1", two), Devices());
  EXPECT_EQ(VisibleDevices(FormatCudaUuid(UuidOf(two, 1)).c_str(), two), Devices{1});
  EXPECT_EQ(VisibleDevices("GPU-fb", two), Devices{1});
  const Settings mig = ReadSettings("devices=2,mig=yes");
  EXPECT_EQ(VisibleDevices(nullptr, mig), Devices{0}) << "a process sees one instance";
  EXPECT_EQ(VisibleDevices("MIG-fb,0", mig), Devices{1});
}

TEST(SettingsTest, DevicesOfOneDirectoryAreKnownInAllProcessesAndDifferFromThoseOfAnother) {
  const auto uuid = [](const char* settings, int device) {
    return FormatCudaUuid(UuidOf(ReadSettings(settings), device));
  };
  // A constant, as another process computes it, too.
  EXPECT_EQ(uuid("dir=/dev/shm/x,memory=1GiB", 0), "GPU-fa616b65-2d63-7564-1eb2-e03281b1d800");
  EXPECT_NE(uuid("dir=/dev/shm/x", 0), uuid("dir=/dev/shm/y", 0));
  EXPECT_NE(uuid("dir=/dev/shm/x", 0), uuid("dir=/dev/shm/x", 1));
}

}  // namespace
}  // namespace memtide::fake_cuda

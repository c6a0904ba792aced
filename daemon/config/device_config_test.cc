// Which device the settings and the machine make.
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kPool[] = "device_pool_bytes: 1073741824 ";  // 1 GiB

Machine WithGpu(const absl::StatusOr<Gpu>& gpu, std::string* requested = nullptr) {
  Machine machine;
  machine.available_memory = GiB(8);
  machine.socket_dir = "/run/memtide";
  machine.ssd_dir = "/a";
  machine.free_space = [](const std::string&) { return FreeSpace{1, GiB(100)}; };
  machine.gpu_uuids = [] { return std::vector<std::string>{"GPU-1234"}; };
  machine.inspect_gpu = [gpu, requested](const std::string& device) {
    if (requested != nullptr) *requested = device;
    return gpu;
  };
  return machine;
}

Gpu Usable() {
  Gpu gpu;
  gpu.uuid = "GPU-1234";
  gpu.description = "0 (Name, 80 GiB, GPU-1234)";
  gpu.free = GiB(70);
  gpu.total = GiB(80);
  gpu.others = {"1 (Name)"};
  return gpu;
}

absl::StatusOr<Config> From(const std::string& text, const Machine& machine) {
  const auto proto = ParseConfigText(text, "test");
  if (!proto.ok()) return proto.status();
  return Validate(*proto, machine);
}

std::string Refusal(const std::string& text, const Machine& machine, StatusCode code) {
  const absl::Status status = From(text, machine).status();
  EXPECT_EQ(status.code(), code) << text << ": " << status;
  return std::string(status.message());
}

const absl::Status kNoGpu = absl::NotFoundError("no driver");
const absl::Status kBroken = absl::UnavailableError("nvidia-uvm is not loaded");

TEST(DeviceConfigTest, AutoTakesAGpuAndMostOfWhatIsFree) {
  const auto config = From("", WithGpu(Usable()));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->cuda_devices.at(0).uuid, "GPU-1234");
  EXPECT_EQ(config->cuda_devices.at(0).pool, GiB(42));
  EXPECT_FALSE(config->cuda_devices_are_named);
  EXPECT_EQ(config->DevicePools(), GiB(42));
  EXPECT_EQ(config->host_pool, GiB(4)) << "a GPU takes no host memory";
  EXPECT_EQ(From(kPool, WithGpu(Usable()))->cuda_devices.at(0).pool, GiB(1));
}

TEST(DeviceConfigTest, AutoWithoutAGpuEmulatesWhereASizeIsGiven) {
  const auto without = From("", WithGpu(kNoGpu));
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_TRUE(without->DevicePools().IsZero());
  const auto emulated = From(kPool, WithGpu(kNoGpu));
  ASSERT_TRUE(emulated.ok()) << emulated.status();
  EXPECT_EQ(emulated->emulated_device->capacity, GiB(1));
  EXPECT_EQ(emulated->DevicePools(), GiB(1));
  EXPECT_TRUE(emulated->warnings.empty());
}

TEST(DeviceConfigTest, AutoWarnsOfAGpuThatDoesNotWork) {
  const auto without = From("", WithGpu(kBroken));
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_TRUE(without->DevicePools().IsZero());
  EXPECT_THAT(without->warnings, ElementsAre(HasSubstr("nvidia-uvm is not loaded")));
  const auto emulated = From(kPool, WithGpu(kBroken));
  ASSERT_TRUE(emulated.ok()) << emulated.status();
  EXPECT_TRUE(emulated->emulated_device.has_value());
  EXPECT_THAT(emulated->warnings, ElementsAre(HasSubstr("a device is emulated instead")));
}

TEST(DeviceConfigTest, AutoWithALinkMeansAnEmulatedDevice) {
  const auto config = From(std::string(kPool) + "emulated_link { }", WithGpu(Usable()));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->emulated_device.has_value());
}

TEST(DeviceConfigTest, NoneAndEmulatedLookForNoGpu) {
  std::string requested = "nothing";
  EXPECT_TRUE(From("device: \"none\"", WithGpu(Usable(), &requested))->DevicePools().IsZero());
  EXPECT_TRUE(From(std::string(kPool) + "device: \"emulated\"", WithGpu(Usable(), &requested))
                  ->emulated_device.has_value());
  EXPECT_EQ(requested, "nothing");
}

TEST(DeviceConfigTest, AGpuIsNamedByOrdinalOrUuid) {
  std::string requested = "nothing";
  const Machine machine = WithGpu(Usable(), &requested);
  EXPECT_EQ(From("device: \"cuda\"", machine)->cuda_devices.size(), 1u);
  EXPECT_EQ(requested, "GPU-1234");
  EXPECT_TRUE(From("device: \"cuda:3\"", machine)->cuda_devices_are_named);
  EXPECT_EQ(requested, "3");
  EXPECT_TRUE(From("device: \"GPU-12\"", machine)->cuda_devices_are_named);
  EXPECT_EQ(requested, "GPU-12");
  EXPECT_TRUE(From("device: \"MIG-12\"", machine)->cuda_devices_are_named);
  EXPECT_EQ(requested, "MIG-12");
  for (const char* const text : {"gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", "1", "cuda:0,",
                                 "cuda:0,none", "emulated:0", "emulated:17", "emulated:x"}) {
    EXPECT_THAT(
        Refusal("device: \"" + std::string(text) + "\"", machine, StatusCode::kInvalidArgument),
        HasSubstr(text));
  }
}

TEST(DeviceConfigTest, AGpuThatWasAskedForMustWork) {
  for (const absl::Status& status : {kNoGpu, kBroken}) {
    EXPECT_EQ(Refusal("device: \"cuda\"", WithGpu(status), StatusCode::kUnavailable),
              "device: \"cuda\", but " + std::string(status.message()));
  }
}

// A machine with GPU-0 to GPU-2, of which the second does not work.
Machine WithThree() {
  Machine machine = WithGpu(kNoGpu);
  machine.gpu_uuids = [] { return std::vector<std::string>{"GPU-0", "GPU-1", "GPU-2"}; };
  machine.inspect_gpu = [](const std::string& device) -> absl::StatusOr<Gpu> {
    const std::string number(1, device.back());
    if (number == "1") return kBroken;
    Gpu gpu = Usable();
    gpu.uuid = "GPU-" + number;
    gpu.description = number + " (Name)";
    gpu.others.clear();
    for (const char* other : {"0", "1", "2"}) {
      if (other != number) gpu.others.push_back(std::string(other) + " (Name)");
    }
    return gpu;
  };
  return machine;
}

TEST(DeviceConfigTest, AllGpusThatWorkAreTakenAndTheOthersAreNamed) {
  for (const char* const text : {"", "device: \"cuda\""}) {
    const auto config = From(text, WithThree());
    ASSERT_TRUE(config.ok()) << config.status();
    ASSERT_EQ(config->cuda_devices.size(), 2u);
    EXPECT_EQ(config->cuda_devices[0].uuid, "GPU-0");
    EXPECT_EQ(config->cuda_devices[1].uuid, "GPU-2");
    EXPECT_EQ(config->DevicePools(), GiB(42) * 2);
    EXPECT_THAT(config->warnings,
                ElementsAre("a GPU is not used: " + std::string(kBroken.message())));
  }
}

TEST(DeviceConfigTest, SeveralGpusAreNamedAndEachOnce) {
  const auto config = From("device: \"cuda:2,GPU-0\"", WithThree());
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->cuda_devices.size(), 2u);
  EXPECT_EQ(config->cuda_devices[0].uuid, "GPU-2") << "numbers follow the settings";
  EXPECT_THAT(config->other_gpus, ElementsAre("1 (Name)"));
  Refusal("device: \"cuda:0,cuda:1\"", WithThree(), StatusCode::kUnavailable);
  EXPECT_THAT(Refusal("device: \"cuda:0,GPU-0\"", WithThree(), StatusCode::kInvalidArgument),
              HasSubstr("GPU 0 (Name) twice"));
}

TEST(DeviceConfigTest, EachGpuHasRoomForTheJobsThatItsNumberHad) {
  Machine machine = WithThree();
  machine.persisted.device_pools = {Bytes(), GiB(60)};
  const auto config = From("", machine);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->cuda_devices[0].pool, GiB(42));
  EXPECT_EQ(config->cuda_devices[1].pool, GiB(60));
}

TEST(DeviceConfigTest, SeveralDevicesAreEmulatedOfThatSizeEach) {
  const auto config = From(std::string(kPool) + "device: \"emulated:3\"", WithGpu(kNoGpu));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->emulated_device->count, 3u);
  EXPECT_EQ(config->emulated_device->capacity, GiB(1));
  EXPECT_EQ(config->DevicePools(), GiB(3));
  EXPECT_EQ(config->host_pool, MiB(2560)) << "half of what is left";
}

TEST(DeviceConfigTest, MoreThanIsFreeIsRefusedWithBothNumbers) {
  EXPECT_EQ(
      Refusal("device_pool_bytes: 79456894976", WithGpu(Usable()), StatusCode::kFailedPrecondition),
      "device_pool_bytes: 74 GiB, but only 70 GiB of 80 GiB are free on GPU 0 (Name, 80 GiB, "
      "GPU-1234). Ask for less (--device-pool), or end what uses it (nvidia-smi)");
}

TEST(DeviceConfigTest, WhatDoesNotGoTogetherIsRefused) {
  const Machine machine = WithGpu(Usable());
  Refusal("device: \"none\" device_pool_bytes: 2097152", machine, StatusCode::kInvalidArgument);
  Refusal("device: \"emulated\"", machine, StatusCode::kInvalidArgument);
  Refusal("emulated_link { }", machine, StatusCode::kInvalidArgument);
  Refusal("device: \"cuda\" emulated_link { }", machine, StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace memtide

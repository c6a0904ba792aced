// Host memory that CudaDevice pins, and how it copies the rest.
#include <sys/mman.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "daemon/device/cuda_device.h"
#include "daemon/device/testing/cuda_device_fixture.h"

namespace memtide {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const SharedFakeCuda shared("memory=64MiB,numa_node=0,pci=0000:17:00.0");
constexpr Bytes kSlot = MiB(2);
constexpr size_t kSlots = 24;

// Bytes that repeat only after 251, so that a piece in the wrong place shows.
std::string Text(size_t size, size_t seed = 0) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>((i + seed + i / 4096) % 251);
  return text;
}

class CudaStagingTest : public CudaDeviceFixture {
 protected:
  CudaStagingTest() : pool_(kSlot.count() * kSlots, '\0') {}
  ~CudaStagingTest() override {
    Remove(added_);
    fake_cuda::SetPinnedLimit(Bytes());
    fake_cuda::SetDelay(Duration::zero());
  }

  char* Slot(size_t index) { return &pool_[kSlot.count() * index]; }
  // Adds slots until `count` are added, or removes the last until `count` are left.
  void Add(size_t count) {
    for (; added_ < count; ++added_) device_->AddHostMemory(Slot(added_), kSlot);
  }
  void Remove(size_t count) {
    for (; count > 0; --count) device_->RemoveHostMemory(Slot(--added_));
  }
  Bytes Pinned() { return device_->host_memory().pinned; }
  Bytes Unpinned() { return device_->host_memory().unpinned; }

  std::string pool_;
  size_t added_ = 0;
};

TEST_F(CudaStagingTest, CopiesOfUnpinnedMemoryGoThroughPinnedBuffers) {
  Open();
  EXPECT_EQ(device_->host_memory().staging, StagingRing::kSize);
  EXPECT_EQ(fake_cuda::PinnedBytes(), StagingRing::kSize);
  const auto memory = Allocate("memory", MiB(32));
  const Bytes before = fake_cuda::PageableBytes();
  for (const size_t size : {size_t{0}, size_t{1}, size_t{65536}, size_t{65537}, size_t{2} << 20,
                            (size_t{5} << 20) + 123, size_t{32} << 20}) {
    const std::string text = Text(size, size);
    ASSERT_TRUE(Write(*memory, text).ok()) << size;
    EXPECT_TRUE(Read(*memory, size) == text) << size;
  }
  EXPECT_EQ(fake_cuda::PageableBytes(), before);
  EXPECT_EQ(fake_cuda::Held().events, 0u);
}

TEST_F(CudaStagingTest, CopiesOfPinnedMemoryAreOneCallEach) {
  Open();
  Add(1);
  const auto memory = Allocate("memory", kSlot);
  const uint64_t before = fake_cuda::CallCount("cuMemcpyHtoDAsync");
  ASSERT_TRUE(device_->CopyIn(*memory, Bytes(0), Slot(0), kSlot).ok());
  EXPECT_EQ(fake_cuda::CallCount("cuMemcpyHtoDAsync"), before + 1);
}

TEST_F(CudaStagingTest, TheLimitIsFoundAndRoomIsLeftForOthers) {
  fake_cuda::SetPinnedLimit(StagingRing::kSize + kSlot * 16);
  Open();
  Add(kSlots);
  EXPECT_EQ(Pinned(), kSlot * 14) << "an eighth of the limit is left";
  EXPECT_EQ(Unpinned(), kSlot * (kSlots - 14));
  EXPECT_EQ(fake_cuda::PinnedBytes(), StagingRing::kSize + Pinned());
  EXPECT_EQ(fake_cuda::CallCount("cuMemHostRegister") - fake_cuda::CallCount("cuMemHostUnregister"),
            1 + 14 + 1u)
      << "one call found the limit";
  EXPECT_THAT(Lines(), ElementsAre(AllOf(HasSubstr("some host memory is not pinned"),
                                         HasSubstr("16 MiB of pinned buffers"))));
  const auto memory = Allocate("memory", kSlot);
  const Bytes before = fake_cuda::PageableBytes();
  for (size_t i = 0; i < kSlots; ++i) {
    const std::string text = Text(kSlot.count(), i);
    std::copy(text.begin(), text.end(), Slot(i));
    ASSERT_TRUE(device_->CopyIn(*memory, Bytes(0), Slot(i), kSlot).ok());
    std::fill_n(Slot(i), kSlot.count(), '#');
    ASSERT_TRUE(device_->CopyOut(*memory, Bytes(0), Slot(i), kSlot).ok());
    EXPECT_TRUE(std::equal(text.begin(), text.end(), Slot(i))) << i;
  }
  EXPECT_EQ(fake_cuda::PageableBytes(), before);
}

TEST_F(CudaStagingTest, TheLimitIsForgottenWhenMostOfItIsFree) {
  fake_cuda::SetPinnedLimit(StagingRing::kSize + kSlot * 8);
  Open();
  Add(kSlots);
  EXPECT_EQ(Pinned(), kSlot * 7);
  fake_cuda::SetPinnedLimit(Bytes());
  Remove(2);
  Add(kSlots);
  EXPECT_EQ(Pinned(), kSlot * 7) << "nothing was unpinned, so nothing is tried";
  Remove(kSlots);
  EXPECT_EQ(Pinned() + Unpinned(), Bytes());
  Add(kSlots);
  EXPECT_EQ(Pinned(), kSlot * kSlots);
}

TEST_F(CudaStagingTest, BuffersAreSmallWhereLittleCanBePinned) {
  fake_cuda::SetPinnedLimit(MiB(5));
  Open();
  EXPECT_EQ(device_->host_memory().staging, MiB(4));
  const auto memory = Allocate("memory", kSlot);
  const Bytes before = fake_cuda::PageableBytes();
  const std::string text = Text(kSlot.count());
  ASSERT_TRUE(Write(*memory, text).ok());
  EXPECT_TRUE(Read(*memory, text.size()) == text);
  EXPECT_EQ(fake_cuda::PageableBytes(), before);
  EXPECT_THAT(Lines(), ElementsAre());
}

TEST_F(CudaStagingTest, WithoutBuffersCopiesAreSlowerAndItIsSaid) {
  fake_cuda::SetPinnedLimit(KiB(4));
  Open();
  Add(2);
  EXPECT_EQ(device_->host_memory().staging, Bytes());
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("the buffers for copies cannot be pinned"),
                                   HasSubstr("to and from the GPU are slower")));
  const auto memory = Allocate("memory", kSlot);
  const Bytes before = fake_cuda::PageableBytes();
  const std::string text = Text(kSlot.count());
  ASSERT_TRUE(Write(*memory, text).ok());
  EXPECT_TRUE(Read(*memory, text.size()) == text);
  EXPECT_EQ(fake_cuda::PageableBytes() - before, kSlot * 2);
}

TEST_F(CudaStagingTest, ACopyKeepsThePinOfItsMemory) {
  Open();
  Add(8);
  const auto memory = Allocate("memory", kSlot);
  fake_cuda::SetDelay(std::chrono::milliseconds(200));
  const uint64_t before = fake_cuda::CallCount("cuMemcpyHtoDAsync");
  std::thread copy([&] { EXPECT_TRUE(device_->CopyIn(*memory, Bytes(0), Slot(0), kSlot).ok()); });
  while (fake_cuda::CallCount("cuMemcpyHtoDAsync") == before) std::this_thread::yield();
  fake_cuda::SetPinnedLimit(fake_cuda::PinnedBytes());
  Add(9);
  copy.join();
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("not pinned"))) << "the GPU was not lost";
  EXPECT_EQ(Pinned(), kSlot * 7);
  // The copy's slot is still pinned, and another one is not.
  const uint64_t calls = fake_cuda::CallCount("cuMemcpyHtoDAsync");
  ASSERT_TRUE(device_->CopyIn(*memory, Bytes(0), Slot(0), kSlot).ok());
  EXPECT_EQ(fake_cuda::CallCount("cuMemcpyHtoDAsync"), calls + 1);
}

TEST_F(CudaStagingTest, CudaThatCannotPinGetsWhatThePoolHas) {
  Open();
  Add(4);
  const auto memory = Allocate("memory", kSlot);
  fake_cuda::FailCall("cuEventCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_TRUE(device_->CopyIn(*memory, Bytes(0), Slot(0), kSlot).ok());
  EXPECT_EQ(Pinned(), Bytes()) << "64 MiB are more than there was";
  fake_cuda::FailCall("cuEventCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(device_->CopyIn(*memory, Bytes(0), Slot(0), kSlot).code(),
            absl::StatusCode::kResourceExhausted)
      << "there is nothing left to give";
}

TEST_F(CudaStagingTest, AnAllocationThatFailsOnAGpuWithRoomUnpinsToo) {
  Open();
  Add(4);
  fake_cuda::FailCall("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const auto memory = Allocate("memory", kSlot);
  EXPECT_EQ(Pinned(), Bytes());
  Remove(4);
  Add(4);
  EXPECT_FALSE(device_->Allocate("too much", MiB(64), MemoryKind::kCudaDescriptor).ok());
  EXPECT_EQ(Pinned(), kSlot * 4) << "the GPU itself was full";
}

TEST_F(CudaStagingTest, AFailureBetweenPiecesLeavesNothingInFlight) {
  Open();
  const std::string text = Text(MiB(16).count());
  const std::vector<std::string> calls = {"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuEventRecord",
                                          "cuEventSynchronize"};
  for (const std::string& call : calls) {
    for (const int nth : {1, 3, 7, 13}) {
      for (const bool in : {true, false}) {
        if (call == (in ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync")) continue;
        SCOPED_TRACE(call + (in ? " in " : " out ") + std::to_string(nth));
        auto memory = Allocate("memory", MiB(16));
        fake_cuda::SetDelay(std::chrono::milliseconds(30));
        fake_cuda::FailCall(call, nth, CUDA_ERROR_INVALID_VALUE);
        std::string host = text;
        const Bytes size(host.size());
        const absl::Status status = in ? device_->CopyIn(*memory, Bytes(0), host.data(), size)
                                       : device_->CopyOut(*memory, Bytes(0), &host[0], size);
        EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
        // A copy that is still queued would break with the memory, and the context with it.
        memory.reset();
        ASSERT_TRUE(UseGpu(0).ok());
        EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
        EXPECT_EQ(fake_cuda::Held().events, 0u);
        fake_cuda::SetDelay(Duration::zero());
      }
    }
  }
  const auto memory = Allocate("memory", MiB(16));
  ASSERT_TRUE(Write(*memory, text).ok());
  EXPECT_TRUE(Read(*memory, text.size()) == text) << "all lanes are free again";
  EXPECT_THAT(Lines(), ElementsAre()) << "the GPU was not lost";
}

TEST_F(CudaStagingTest, AGpuThatIsLostBetweenPiecesIsRestartedAndTheCopyRepeated) {
  Open();
  Add(2);
  const auto memory = Allocate("memory", MiB(16));
  const std::string text = Text(MiB(16).count());
  fake_cuda::FailCall("cuMemcpyHtoDAsync", 5, CUDA_ERROR_ILLEGAL_ADDRESS);
  ASSERT_TRUE(Write(*memory, text).ok());
  fake_cuda::FailCall("cuEventSynchronize", 9, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_TRUE(Read(*memory, text.size()) == text);
  EXPECT_EQ(Lines().size(), 2u);
  EXPECT_EQ(device_->host_memory().staging, StagingRing::kSize);
  EXPECT_EQ(Pinned(), kSlot * 2);
}

TEST_F(CudaStagingTest, ARestartPinsTheBuffersBeforeAnythingElse) {
  fake_cuda::SetPinnedLimit(StagingRing::kSize + kSlot * 8);
  Open();
  Add(8);
  const auto memory = Allocate("memory", kSlot);
  fake_cuda::SetPinnedLimit(StagingRing::kSize + kSlot * 2);
  fake_cuda::FailCall("cuMemcpyHtoDAsync", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  ASSERT_TRUE(Write(*memory, "text").ok());
  EXPECT_EQ(device_->host_memory().staging, StagingRing::kSize);
  EXPECT_EQ(Pinned(), kSlot) << "and room for one is left";
  EXPECT_EQ(Read(*memory, 4), "text");
}

// Messages go to the owner's code, which may use the GPU: none is sent before it can be used.
TEST_F(CudaStagingTest, WhatCannotBePinnedAgainIsSaidAfterTheRestart) {
  Open();
  Add(2);
  const auto memory = Allocate("memory", kSlot);
  fake_cuda::SetPinnedLimit(KiB(4));
  fake_cuda::FailCall("cuMemcpyHtoDAsync", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  ASSERT_TRUE(Write(*memory, "text").ok());
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("and restarted"),
                                   HasSubstr("the buffers for copies cannot be pinned"),
                                   HasSubstr("some host memory is not pinned")));
  EXPECT_EQ(Read(*memory, 4), "text");
}

TEST_F(CudaStagingTest, MoreCopiesThanLanesTakeTurns) {
  Open();
  std::vector<std::unique_ptr<DeviceMemory>> memories;
  for (int i = 0; i < 5; ++i) memories.push_back(Allocate("memory", MiB(4)));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < memories.size(); ++i) {
    threads.emplace_back([this, i, memory = memories[i].get()] {
      for (size_t round = 0; round < 8; ++round) {
        const std::string text = Text(MiB(4).count() - 77 * i, i + 10 * round);
        EXPECT_TRUE(Write(*memory, text).ok());
        EXPECT_TRUE(Read(*memory, text.size()) == text);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CudaStagingTest, HostMemoryBelongsToTheNodeOfTheGpu) {
  const std::filesystem::path root = testing::TempDir() + "/two-nodes";
  const auto write = [&](const std::string& path, const std::string& line) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << line << "\n";
  };
  write("devices/system/node/online", "0-1");
  write("devices/system/node/node0/cpulist", "0");
  write("devices/system/node/node1/cpulist", "1");
  write("bus/pci/devices/0000:17:00.0/numa_node", "1");
  CudaDeviceOptions options = Options();
  options.sysfs = root;
  device_ = *CudaDevice::Open(options);
  EXPECT_EQ(device_->placement().node, 0) << "as the driver says";
  EXPECT_THAT(device_->placement().cpus, ElementsAre(0));
  EXPECT_EQ(device_->host_memory().numa_node, 0);
  CudaDeviceFacts facts = (*CudaDevices()).front();
  EXPECT_EQ(facts.pci_id, "0000:17:00.0");
  facts.numa_node = absl::nullopt;
  EXPECT_EQ(PlacementOf(facts, NumaTopology(root)).node, 1) << "as sysfs says";
  write("devices/system/node/online", "0");
  EXPECT_EQ(PlacementOf(facts, NumaTopology(root)).node, absl::nullopt);
}

}  // namespace
}  // namespace memtide

// Two GPUs of one process, which pin the same host memory.
#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/importer_process.h"
#include "daemon/device/cuda_device.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

const SharedFakeCuda shared("memory=64MiB,devices=2");
constexpr Bytes kSize = MiB(2);

class CudaDevicesTest : public testing::Test {
 protected:
  CudaDevicesTest() : host_memory_(std::make_shared<CudaHostMemory>(*LoadCudaDriver())) {}

  std::unique_ptr<CudaDevice> Open(const std::string& number) {
    CudaDeviceOptions options;
    options.device = number;
    options.host_memory = host_memory_;
    auto device = CudaDevice::Open(options);
    EXPECT_TRUE(device.ok()) << device.status();
    return *std::move(device);
  }

  const std::shared_ptr<CudaHostMemory> host_memory_;
  std::string host_ = std::string(kSize.count(), 'h');
};

TEST_F(CudaDevicesTest, HostMemoryIsPinnedOnceUntilTheLastGpuRemovesIt) {
  const std::unique_ptr<CudaDevice> first = Open("0"), second = Open("1");
  const Bytes buffers = fake_cuda::PinnedBytes();
  first->AddHostMemory(&host_[0], kSize);
  second->AddHostMemory(&host_[0], kSize);
  EXPECT_EQ(fake_cuda::PinnedBytes(), buffers + kSize);
  EXPECT_EQ(first->host_memory().pinned, kSize);
  EXPECT_EQ(second->host_memory().pinned, kSize);
  first->RemoveHostMemory(&host_[0]);
  EXPECT_EQ(fake_cuda::PinnedBytes(), buffers + kSize) << "the other GPU copies from it";
  {
    auto memory = second->Allocate("memory", kSize, MemoryKind::kCudaDescriptor);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_TRUE(second->CopyIn(**memory, Bytes(0), host_.data(), kSize).ok());
    std::string back(kSize.count(), '?');
    EXPECT_TRUE(second->CopyOut(**memory, Bytes(0), &back[0], kSize).ok());
    EXPECT_EQ(back, host_);
  }
  second->RemoveHostMemory(&host_[0]);
  EXPECT_EQ(fake_cuda::PinnedBytes(), buffers);
}

TEST_F(CudaDevicesTest, AResetOfOneGpuWaitsForTheCopiesOfTheOther) {
  ASSERT_TRUE(UseGpu(0).ok());
  ASSERT_TRUE(host_memory_->Add(&host_[0], kSize).ok());
  auto copy = std::make_unique<CudaHostMemory::Use>(host_memory_.get(), host_.data(), kSize);
  ASSERT_TRUE(copy->pinned());
  std::atomic<bool> copied{false};
  std::thread resets([&] {
    EXPECT_TRUE(UseGpu(1).ok());
    CudaHostMemory::Reset reset(host_memory_.get());
    EXPECT_TRUE(copied);
    EXPECT_FALSE(CudaHostMemory::Use(host_memory_.get(), host_.data(), kSize).pinned());
    EXPECT_TRUE(reset.PinAgain().ok());
  });
  // From the reset's beginning on no copy begins from pinned memory.
  while (CudaHostMemory::Use(host_memory_.get(), host_.data(), kSize).pinned()) {
    std::this_thread::yield();
  }
  copied = true;
  copy.reset();
  resets.join();
  EXPECT_TRUE(CudaHostMemory::Use(host_memory_.get(), host_.data(), kSize).pinned());
  host_memory_->Remove(&host_[0]);
}

}  // namespace
}  // namespace memtide

#include "daemon/device/cuda_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "daemon/device/testing/cuda_device_fixture.h"

namespace memtide {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const SharedFakeCuda shared("memory=64MiB,devices=2");

class CudaDeviceTest : public CudaDeviceFixture {
 protected:
  // All that is done with a device and memory of `kind`; what failed first.
  absl::Status Life(MemoryKind kind) {
    auto device = CudaDevice::Open(Options());
    MEMTIDE_RETURN_IF_ERROR(device.status());
    std::string host(4096, 'h');
    (*device)->AddHostMemory(&host[0], Bytes(host.size()));
    absl::Status status = Use(device->get(), kind, &host);
    (*device)->RemoveHostMemory(&host[0]);
    return status;
  }
  static absl::Status Use(CudaDevice* device, MemoryKind kind, std::string* host) {
    const std::vector<MemoryKind> kinds = device->kinds();
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
      return absl::FailedPreconditionError("the driver seems not to know it");
    }
    MEMTIDE_ASSIGN_OR_RETURN(const auto memory, device->Allocate("life", MiB(2), kind));
    const Bytes size(host->size());
    MEMTIDE_RETURN_IF_ERROR(device->CopyIn(*memory, Bytes(0), host->data(), size));
    MEMTIDE_RETURN_IF_ERROR(device->Zero(*memory, Bytes(0), Bytes(10)));
    return device->CopyOut(*memory, Bytes(0), &(*host)[0], size);
  }
};

TEST_F(CudaDeviceTest, DescriptorsComeFirst) {
  Open();
  EXPECT_THAT(device_->kinds(), ElementsAre(MemoryKind::kCudaDescriptor, MemoryKind::kCudaIpc));
  EXPECT_THAT(device_->Describe(), HasSubstr("Fake GPU, 64 MiB, GPU-fa"));
}

TEST_F(CudaDeviceTest, WhateverCallFailsIsAStatusAndNothingIsLeft) {
  for (const MemoryKind kind : {MemoryKind::kCudaDescriptor, MemoryKind::kCudaIpc}) {
    ASSERT_TRUE(Life(kind).ok());
    const uint64_t before = fake_cuda::CallCount("*");
    ASSERT_TRUE(Life(kind).ok());
    const uint64_t calls = fake_cuda::CallCount("*") - before;
    ASSERT_GT(calls, 40u);
    for (const int code : {1, 2, 304, 801, 999}) {
      uint64_t failed = 0;
      for (uint64_t call = 1; call <= calls; ++call) {
        fake_cuda::FailCall("*", call, code);
        failed += Life(kind).ok() ? 0 : 1;
        fake_cuda::ClearFaults();
        EXPECT_TRUE(fake_cuda::Held().empty()) << "after call " << call << " failed with " << code;
        EXPECT_EQ(Free(), total_) << "after call " << call << " failed with " << code;
      }
      EXPECT_GT(failed, 5u) << code;
    }
  }
}

TEST_F(CudaDeviceTest, WhateverCallLosesTheGpuNothingIsLeftAfterItsReset) {
  for (const MemoryKind kind : {MemoryKind::kCudaDescriptor, MemoryKind::kCudaIpc}) {
    const uint64_t before = fake_cuda::CallCount("*");
    ASSERT_TRUE(Life(kind).ok());
    const uint64_t calls = fake_cuda::CallCount("*") - before;
    for (uint64_t call = 1; call <= calls; ++call) {
      fake_cuda::FailCall("*", call, CUDA_ERROR_ILLEGAL_ADDRESS);
      Life(kind).IgnoreError();
      fake_cuda::ClearFaults();
      ASSERT_TRUE(ResetGpu(0).ok());
      EXPECT_EQ(Free(), total_) << call;
    }
  }
}

TEST_F(CudaDeviceTest, ErrorsNameTheMemoryAndItsSize) {
  Open();
  const auto memory = Allocate("weights", MiB(2));
  fake_cuda::FailCall("cuMemcpyHtoDAsync", 1, CUDA_ERROR_INVALID_VALUE);
  const absl::Status copied = Write(*memory, "bytes");
  EXPECT_EQ(copied.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(copied.message()),
              HasSubstr("copying into memory \"weights\" (2 MiB), 5 B at 0"));
  fake_cuda::FailCall("cuMemSetAccess", 1, CUDA_ERROR_NOT_SUPPORTED);
  const auto more = device_->Allocate("more", MiB(4), MemoryKind::kCudaDescriptor);
  EXPECT_THAT(std::string(more.status().message()),
              HasSubstr("cuMemSetAccess of memory \"more\" (4 MiB)"));
}

TEST_F(CudaDeviceTest, AWaitThatFailsLeavesNoCopyUnderWay) {
  Open();
  const auto memory = Allocate("memory", MiB(2));
  fake_cuda::SetDelay(std::chrono::milliseconds(20));
  fake_cuda::FailCall("cuEventSynchronize", 1, CUDA_ERROR_INVALID_HANDLE);
  std::string host(4096, 'h');
  EXPECT_FALSE(device_->CopyOut(*memory, Bytes(0), &host[0], Bytes(host.size())).ok());
  host.assign(4096, 'n');
  fake_cuda::SetDelay(Duration::zero());
  ASSERT_TRUE(UseGpu(0).ok());
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(host, std::string(4096, 'n'));
}

TEST_F(CudaDeviceTest, TheNextCopyIsQueuedBeforeTheFirstEnds) {
  Open();
  ASSERT_EQ(device_->copies_in_flight(), 2u);
  const auto memory = Allocate("memory", MiB(2));
  const std::string host(4096, 'h');
  const Bytes size(host.size());
  fake_cuda::SetDelay(std::chrono::milliseconds(200));
  const uint64_t before = fake_cuda::CallCount("cuMemcpyHtoDAsync");
  std::atomic<int> ended{0};
  const auto copy = [&](Bytes offset) {
    EXPECT_TRUE(device_->CopyIn(*memory, offset, host.data(), size).ok());
    ended.fetch_add(1);
  };
  std::thread first(copy, Bytes(0)), second(copy, size);
  while (fake_cuda::CallCount("cuMemcpyHtoDAsync") - before < 2 && ended.load() == 0) {
    std::this_thread::yield();
  }
  EXPECT_EQ(ended.load(), 0) << "both are in the stream";
  first.join();
  second.join();
  fake_cuda::SetDelay(Duration::zero());
  std::string read(2 * host.size(), '-');
  ASSERT_TRUE(device_->CopyOut(*memory, Bytes(0), &read[0], Bytes(read.size())).ok());
  EXPECT_EQ(read, host + host);
}

TEST_F(CudaDeviceTest, OutOfMemorySaysHowMuchThereIs) {
  Open();
  const auto memory = Allocate("most", MiB(60));
  const auto more = device_->Allocate("more", MiB(6), MemoryKind::kCudaDescriptor);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(more.status().message()),
              HasSubstr("memory \"more\" (6 MiB): out of memory"));
  EXPECT_THAT(std::string(more.status().message()), HasSubstr("4 MiB of 64 MiB are free"));
  EXPECT_THAT(Lines(), ElementsAre());
}

TEST_F(CudaDeviceTest, AnAllocationWaitsForWhoLetsMemoryGo) {
  CudaDeviceOptions options = Options();
  options.patience = std::chrono::seconds(60);
  device_ = *CudaDevice::Open(options);
  auto first = Allocate("first", MiB(60));
  auto client = std::make_unique<ImporterProcess>(first->Export());
  first.reset();
  EXPECT_EQ(Free(), MiB(4)) << "the client has it";
  const uint64_t before = fake_cuda::CallCount("cuMemCreate");
  std::thread killer([&] {
    while (fake_cuda::CallCount("cuMemCreate") < before + 2) std::this_thread::yield();
    client.reset();  // By kill -9.
  });
  const auto second = Allocate("second", MiB(60));
  killer.join();
  EXPECT_EQ(Read(*second, 3), std::string(3, '\0'));
}

TEST_F(CudaDeviceTest, AClientKeepsMemoryUntilItDies) {
  Open();
  auto memory = Allocate("lent", MiB(2));
  ASSERT_TRUE(Write(*memory, "bytes").ok());
  {
    ImporterProcess client(memory->Export());
    memory.reset();
    EXPECT_EQ(Free(), MiB(62));
    EXPECT_EQ(client.Peek(Bytes(0), Bytes(5)), "bytes");
  }
  EXPECT_EQ(Free(), MiB(64));
}

TEST_F(CudaDeviceTest, HostMemoryIsPinnedInPieces) {
  Open();
  const size_t size = GiB(65).count();
  void* const host =
      mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(host, MAP_FAILED);
  device_->AddHostMemory(static_cast<char*>(host), Bytes(size));
  // One registration is that of the staging buffers.
  EXPECT_EQ(fake_cuda::Held().registrations, 3u);
  device_->RemoveHostMemory(static_cast<char*>(host));
  EXPECT_EQ(fake_cuda::Held().registrations, 1u);
  fake_cuda::FailCall("cuMemHostRegister", 2, CUDA_ERROR_OUT_OF_MEMORY);
  device_->AddHostMemory(static_cast<char*>(host), Bytes(size));
  EXPECT_EQ(fake_cuda::Held().registrations, 1u) << "all or nothing";
  device_->RemoveHostMemory(static_cast<char*>(host));
  munmap(host, size);
}

TEST_F(CudaDeviceTest, HostMemoryThatCannotBePinnedIsUsedAllTheSameAndSaidOnce) {
  Open();
  const auto memory = Allocate("memory", MiB(2));
  std::string one(4096, '1'), two(4096, '2');
  fake_cuda::FailCall("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
  fake_cuda::FailCall("cuMemHostRegister", 2, CUDA_ERROR_OUT_OF_MEMORY);
  device_->AddHostMemory(&one[0], Bytes(one.size()));
  device_->AddHostMemory(&two[0], Bytes(two.size()));
  EXPECT_THAT(Lines(), ElementsAre(AllOf(HasSubstr("host memory is not pinned"),
                                         HasSubstr("16 MiB of pinned buffers"), HasSubstr("IOMMU"),
                                         Not(HasSubstr("ulimit")))));
  EXPECT_TRUE(Write(*memory, one).ok());
  EXPECT_EQ(Read(*memory, 4096), one);
  device_->RemoveHostMemory(&one[0]);
  device_->RemoveHostMemory(&two[0]);
}

TEST_F(CudaDeviceTest, HostMemoryIsCountedWhileItComesAndGoes) {
  Open();
  std::string memory(4096, 'm');
  std::atomic<bool> done{false};
  std::thread changes([&] {
    for (int i = 0; i < 20000; ++i) {
      device_->AddHostMemory(&memory[0], Bytes(memory.size()));
      device_->RemoveHostMemory(&memory[0]);
    }
    done = true;
  });
  // `unpinned`, if it came from numbers read in two moments, would be negative at times.
  while (!done) EXPECT_EQ(device_->host_memory().unpinned, Bytes(0));
  changes.join();
}

}  // namespace
}  // namespace memtide

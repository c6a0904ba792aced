// How CudaDevice survives the loss of its GPU.
#include <atomic>
#include <string>
#include <thread>

#include "daemon/device/cuda_device.h"
#include "daemon/device/testing/cuda_device_fixture.h"

namespace memtide {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const SharedFakeCuda shared("memory=64MiB");
constexpr int kLost = CUDA_ERROR_ILLEGAL_ADDRESS;

class CudaRestartTest : public CudaDeviceFixture {
 protected:
  CudaRestartTest() {
    Open();
    device_->AddHostMemory(&host_[0], Bytes(host_.size()));
    memory_ = Allocate("kept", MiB(2));
    EXPECT_TRUE(Write(*memory_, "before").ok());
  }
  ~CudaRestartTest() override {
    memory_.reset();
    device_->RemoveHostMemory(&host_[0]);
  }

  void ExpectOneRestart() {
    EXPECT_THAT(Lines(), ElementsAre(AllOf(HasSubstr("was lost"), HasSubstr("and restarted"))));
    EXPECT_EQ(fake_cuda::Held().registrations, 2u) << "pinned again, as are the staging buffers";
    EXPECT_EQ(Read(*memory_, 6), "before");
  }

  std::string host_ = std::string(4096, 'h');
  std::unique_ptr<DeviceMemory> memory_;
};

TEST_F(CudaRestartTest, CopyInGoesOn) {
  const auto other = Allocate("other", MiB(2));
  fake_cuda::FailCall("cuMemcpyHtoDAsync", 1, kLost);
  EXPECT_TRUE(Write(*other, "new").ok());
  EXPECT_EQ(Read(*other, 3), "new");
  ExpectOneRestart();
}

TEST_F(CudaRestartTest, CopyOutGoesOn) {
  fake_cuda::FailCall("cuEventSynchronize", 1, kLost);
  EXPECT_EQ(Read(*memory_, 6), "before");
  ExpectOneRestart();
}

TEST_F(CudaRestartTest, ZeroGoesOn) {
  const auto other = Allocate("other", MiB(2));
  ASSERT_TRUE(Write(*other, "abc").ok());
  fake_cuda::FailCall("cuMemsetD8Async", 1, kLost);
  EXPECT_TRUE(device_->Zero(*other, Bytes(1), Bytes(1)).ok());
  EXPECT_EQ(Read(*other, 3), std::string("a\0c", 3));
  ExpectOneRestart();
}

TEST_F(CudaRestartTest, AllocateGoesOnWhereverItWas) {
  for (const char* const call :
       {"cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemMap",
        "cuMemSetAccess", "cuMemRelease", "cuMemsetD8Async", "cuEventRecord"}) {
    fake_cuda::FailCall(call, 1, kLost);
    const auto other = Allocate("other", MiB(2));
    EXPECT_EQ(Read(*other, 3), std::string(3, '\0')) << call;
    EXPECT_EQ(Read(*memory_, 6), "before") << call;
    EXPECT_EQ(Free(), MiB(60)) << call << ": nothing of the first attempt is left";
  }
}

TEST_F(CudaRestartTest, AClientAndTheDaemonStillShareTheMemory) {
  ImporterProcess client(memory_->Export());
  fake_cuda::FailCall("cuMemcpyDtoHAsync", 1, kLost);
  EXPECT_EQ(Read(*memory_, 6), "before");
  client.Poke(Bytes(0), "client");
  EXPECT_EQ(Read(*memory_, 6), "client");
}

TEST_F(CudaRestartTest, LegacyMemoryIsLostAndNamed) {
  const auto legacy = Allocate("legacy", MiB(2), MemoryKind::kCudaIpc);
  fake_cuda::FailCall("cuMemcpyHtoDAsync", 1, kLost);
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = Write(*legacy, "bytes");
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"legacy\" (2 MiB): lost"));
  }
  ExpectOneRestart();
}

TEST_F(CudaRestartTest, BothDirectionsAtOnceRestartOnce) {
  const auto other = Allocate("other", MiB(2));
  for (int round = 0; round < 10; ++round) {
    const size_t before = Lines().size();
    std::atomic<int> going{0};
    std::thread in([&] {
      ++going;
      while (going < 2) std::this_thread::yield();
      for (int i = 0; i < 20; ++i) EXPECT_TRUE(Write(*other, "in").ok());
    });
    ++going;
    while (going < 2) std::this_thread::yield();
    fake_cuda::FailCall("cuMemcpyDtoHAsync", 7, kLost);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(Read(*memory_, 6), "before");
    in.join();
    EXPECT_EQ(Lines().size(), before + 1);
  }
}

TEST_F(CudaRestartTest, WhatIsLostAgainAtOnceIsReportedAndTriedAgainLater) {
  fake_cuda::FailCall("cuMemcpyHtoDAsync", 1, kLost);
  fake_cuda::FailCall("cuMemcpyHtoDAsync", 2, kLost);
  EXPECT_EQ(Write(*memory_, "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Read(*memory_, 6), "before");
  EXPECT_EQ(Lines().size(), 2u);
}

TEST_F(CudaRestartTest, HostMemoryThatCannotBePinnedAgainIsUsedUnpinned) {
  fake_cuda::FailCall("cuMemcpyDtoHAsync", 1, kLost);
  // The first call pins the staging buffers.
  fake_cuda::FailCall("cuMemHostRegister", 2, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(Read(*memory_, 6), "before");
  EXPECT_EQ(fake_cuda::Held().registrations, 1u);
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("restarted"), HasSubstr("not pinned")))
      << "what is said is said when the GPU can be used again";
}

TEST_F(CudaRestartTest, AResetMayReportTheErrorThatItIsFor) {
  fake_cuda::FailCall("cuMemcpyDtoHAsync", 1, kLost);
  fake_cuda::FailCall("cuDevicePrimaryCtxReset", 1, kLost);
  EXPECT_EQ(Read(*memory_, 6), "before");
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("restarted")));
}

// ECC: uncorrectable, and contained.
TEST_F(CudaRestartTest, MemoryThatFailsIsReadOnceAndNotUsedAgain) {
  for (const int code : {214, 226}) {
    const auto failed = Allocate("failed", MiB(2));
    ASSERT_TRUE(Write(*failed, "gone").ok());
    std::string bytes(4, ' ');
    const auto read = [&] { return device_->CopyOut(*failed, Bytes(0), &bytes[0], Bytes(4)); };
    fake_cuda::FailCall("cuMemcpyDtoHAsync", 1, code);
    const absl::Status status = read();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("\"failed\""), HasSubstr("GPU 0"), HasSubstr("--resume"),
                      HasSubstr("nvidia-smi")));
    const uint64_t copies = fake_cuda::CallCount("cuMemcpyDtoHAsync");
    EXPECT_EQ(read().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(Write(*failed, "new").code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(device_->Zero(*failed, Bytes(0), Bytes(1)).code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(fake_cuda::CallCount("cuMemcpyDtoHAsync"), copies);
    EXPECT_EQ(Read(*memory_, 6), "before") << "other memory was opened again";
  }
  EXPECT_EQ(Lines().size(), 2u) << "one restart each";
}

// The error ends the context, and both copies with it: which of them met it is not known.
TEST_F(CudaRestartTest, CopiesThatFailTogetherAreRepeated) {
  const auto first = Allocate("first", MiB(2)), second = Allocate("second", MiB(2));
  ASSERT_TRUE(Write(*second, "second").ok());
  // The first copy is in flight until the error ends it.
  fake_cuda::SetDelay(std::chrono::seconds(60));
  const uint64_t waits = fake_cuda::CallCount("cuEventSynchronize");
  fake_cuda::FailCall("cuEventSynchronize", 2, 214);
  std::thread other([&] {
    char byte = 0;
    const absl::Status status = device_->CopyOut(*first, Bytes(0), &byte, Bytes(1));
    EXPECT_TRUE(status.ok()) << status;
  });
  while (fake_cuda::CallCount("cuEventSynchronize") == waits) std::this_thread::yield();
  fake_cuda::SetDelay(std::chrono::microseconds(50));
  EXPECT_EQ(Read(*second, 6), "second");
  other.join();
}

// The first copy that is repeated meets the error again, and alone.
TEST_F(CudaRestartTest, OfTwoCopiesThatFailTogetherOneIsLost) {
  const auto first = Allocate("first", MiB(2)), second = Allocate("second", MiB(2));
  fake_cuda::SetDelay(std::chrono::seconds(60));
  const uint64_t waits = fake_cuda::CallCount("cuEventSynchronize");
  fake_cuda::FailCall("cuEventSynchronize", 2, 214);
  fake_cuda::FailCall("cuEventSynchronize", 3, 214);
  std::atomic<int> whole{0}, lost{0};
  const auto read = [&](const DeviceMemory& memory) {
    char byte = 0;
    const absl::Status status = device_->CopyOut(memory, Bytes(0), &byte, Bytes(1));
    whole += status.ok();
    lost += absl::IsDataLoss(status);
  };
  std::thread other([&] { read(*first); });
  while (fake_cuda::CallCount("cuEventSynchronize") == waits) std::this_thread::yield();
  fake_cuda::SetDelay(std::chrono::microseconds(50));
  read(*second);
  other.join();
  EXPECT_EQ(whole, 1);
  EXPECT_EQ(lost, 1);
}

TEST_F(CudaRestartTest, AContextThatCannotBeUsedIsLost) {
  fake_cuda::FailCall("cuCtxSetCurrent", 1, 46);
  EXPECT_EQ(Read(*memory_, 6), "before");
  ExpectOneRestart();
}

TEST_F(CudaRestartTest, AFailedRestartLosesTheDevice) {
  for (const char* const call : {"cuDevicePrimaryCtxReset", "cuMemImportFromShareableHandle",
                                 "cuMemMap", "cuStreamCreate"}) {
    std::vector<absl::Status> lost;
    CudaDeviceOptions options = Options();
    options.lost = [&lost](const absl::Status& why) { lost.push_back(why); };
    auto device = CudaDevice::Open(options);
    ASSERT_TRUE(device.ok()) << device.status();
    auto memory = *(*device)->Allocate("lost", MiB(2), MemoryKind::kCudaDescriptor);
    fake_cuda::FailCall("cuMemcpyHtoDAsync", 1, kLost);
    fake_cuda::FailCall(call, 1, CUDA_ERROR_NOT_SUPPORTED);
    fake_cuda::FailCall(call, 2, CUDA_ERROR_NOT_SUPPORTED);
    for (int i = 0; i < 2; ++i) {
      const absl::Status status = (*device)->CopyIn(*memory, Bytes(0), "x", Bytes(1));
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << call;
      ASSERT_EQ(lost.size(), 1u);
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("was lost: "), HasSubstr(std::string(lost[0].message()))));
      EXPECT_THAT(std::string(lost[0].message()), HasSubstr("could not be restarted"));
    }
    EXPECT_FALSE((*device)->Allocate("more", MiB(2), MemoryKind::kCudaDescriptor).ok());
    memory.reset();
    device->reset();
    fake_cuda::ClearFaults();
    ASSERT_TRUE(ResetGpu(0).ok());
  }
}

}  // namespace
}  // namespace memtide

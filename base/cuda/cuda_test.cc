#include "base/cuda/cuda.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/cuda/fake/fake_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using ::testing::HasSubstr;

class CudaTest : public testing::Test {
 protected:
  ~CudaTest() override { fake_cuda::ClearFaults(); }
};

TEST_F(CudaTest, NoErrorIsOk) { EXPECT_TRUE(CudaStatus(CUDA_SUCCESS, "anything").ok()); }

TEST_F(CudaTest, ErrorsNameTheCallAndTheRemedy) {
  ASSERT_TRUE(LoadCudaDriver().ok());
  const absl::Status full = CudaStatus(CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate of 64 MiB");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(), "cuMemCreate of 64 MiB: out of memory (CUDA_ERROR_OUT_OF_MEMORY)");
  const absl::Status module = CudaStatus(CUDA_ERROR_UNKNOWN, "looking for a GPU");
  EXPECT_EQ(module.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(module.message()), HasSubstr("modprobe nvidia-uvm"));
  const absl::Status unknown = CudaStatus(static_cast<CUresult>(12345), "x");
  EXPECT_EQ(unknown.message(), "x: CUDA error 12345");
}

TEST_F(CudaTest, TheKindOfAnErrorSaysWhatToDo) {
  EXPECT_EQ(CudaStatus(CUDA_ERROR_ILLEGAL_ADDRESS, "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CudaStatus(CUDA_ERROR_INVALID_VALUE, "x").code(), absl::StatusCode::kInternal);
  EXPECT_EQ(CudaStatus(CUDA_ERROR_NO_DEVICE, "x").code(), absl::StatusCode::kNotFound);
  for (int mps = CUDA_ERROR_MPS_CONNECTION_FAILED; mps <= CUDA_ERROR_MPS_CLIENT_TERMINATED; ++mps) {
    const absl::Status status = CudaStatus(static_cast<CUresult>(mps), "x");
    // The client that the server has ended can be restarted; it has no context any more.
    const bool ended = mps == CUDA_ERROR_MPS_CLIENT_TERMINATED;
    EXPECT_EQ(status.code(),
              ended ? absl::StatusCode::kUnavailable : absl::StatusCode::kFailedPrecondition)
        << mps;
    EXPECT_THAT(std::string(status.message()), HasSubstr("MPS server")) << mps;
  }
  const absl::Status taken = CudaStatus(CUDA_ERROR_DEVICE_UNAVAILABLE, "x");
  EXPECT_EQ(taken.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(taken.message()), HasSubstr("nvidia-smi -c 0, or run under MPS"));
}

TEST_F(CudaTest, AFailureToFindTheDriverIsNotRemembered) {
  // In a process of its own, because this one may have found the driver already.
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        fake_cuda::FailCall("cuInit", 1, CUDA_ERROR_UNKNOWN);
        const bool failed = absl::IsUnavailable(LoadCudaDriver().status());
        const auto driver = LoadCudaDriver();
        const bool found = driver.ok() && (*driver)->events.RecordContext != nullptr &&
                           *LoadCudaDriver() == *driver;
        std::_Exit(failed && found ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(CudaTest, ANewDriverHasEveryFunction) {
  const auto driver = LoadCudaDriver();
  ASSERT_TRUE(driver.ok()) << driver.status();
  // CudaDriver has nothing but pointers to functions.
  std::array<void*, sizeof(CudaDriver) / sizeof(void*)> functions;
  static_assert(sizeof(functions) == sizeof(CudaDriver));
  std::memcpy(functions.data(), *driver, sizeof(functions));
  for (size_t i = 0; i < functions.size(); ++i) EXPECT_NE(functions[i], nullptr) << i;
}

TEST_F(CudaTest, KnowsTheDevices) {
  const auto devices = CudaDevices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 1u);
  const CudaDeviceFacts& facts = devices->front();
  EXPECT_EQ(facts.ordinal, 0);
  EXPECT_EQ(facts.name, "Fake GPU");
  EXPECT_EQ(facts.memory, GiB(1));
  EXPECT_TRUE(facts.descriptors);
  EXPECT_TRUE(facts.legacy_ipc);
  EXPECT_EQ(FormatCudaUuid(facts.uuid), "GPU-fa616b65-2d63-7564-612d-646576696300");
}

TEST_F(CudaTest, ADeviceForOneProcessIsRefusedWithTheRemedy) {
  CudaDeviceFacts facts;
  facts.name = "NAME";
  EXPECT_TRUE(CheckComputeMode(facts).ok());
  facts.compute_mode = CudaComputeMode::kExclusiveProcess;
  EXPECT_EQ(
      CheckComputeMode(facts),
      absl::FailedPreconditionError(
          "GPU 0 (NAME) is in compute mode exclusive-process, so memtide and the script cannot "
          "both use it: nvidia-smi -c 0, or run under MPS, or --device none"));
  facts.mps = true;
  EXPECT_TRUE(CheckComputeMode(facts).ok());
  facts.compute_mode = CudaComputeMode::kProhibited;
  EXPECT_EQ(CheckComputeMode(facts).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CudaTest, AThreadUsesTheContextThatTheProcessKeeps) {
  const CudaDriver& cu = **LoadCudaDriver();
  CUcontext here = nullptr;
  ASSERT_TRUE(UseGpu(0).ok());
  ASSERT_EQ(cu.CtxGetCurrent(&here), CUDA_SUCCESS);
  const uint64_t before = fake_cuda::CallCount("cuDevicePrimaryCtxRetain");
  std::thread([&] {
    CUcontext there = nullptr;
    EXPECT_TRUE(UseGpu(0).ok());
    EXPECT_EQ(cu.CtxGetCurrent(&there), CUDA_SUCCESS);
    EXPECT_EQ(there, here);
  }).join();
  EXPECT_EQ(fake_cuda::CallCount("cuDevicePrimaryCtxRetain"), before);
  EXPECT_EQ(UseGpu(7).code(), absl::StatusCode::kInternal);
}

TEST_F(CudaTest, AfterAResetAContextIsMadeAnew) {
  const CudaDriver& cu = **LoadCudaDriver();
  ASSERT_TRUE(UseGpu(0).ok());
  ASSERT_TRUE(ResetGpu(0).ok());
  size_t free = 0, total = 0;
  EXPECT_EQ(cu.MemGetInfo(&free, &total), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  ASSERT_TRUE(UseGpu(0).ok());
  EXPECT_EQ(cu.MemGetInfo(&free, &total), CUDA_SUCCESS);
}

}  // namespace
}  // namespace memtide

#include "base/cuda/cuda.h"

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

TEST_F(CudaTest, NoErrorIsOk) { EXPECT_TRUE(CudaStatus(cudaSuccess, "anything").ok()); }

TEST_F(CudaTest, ErrorsNameTheCallAndTheRemedy) {
  const absl::Status full = CudaStatus(cudaErrorMemoryAllocation, "cuMemCreate of 64 MiB");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(), "cuMemCreate of 64 MiB: out of memory (cudaErrorMemoryAllocation)");
  const absl::Status old = CudaStatus(cudaErrorInsufficientDriver, "looking for a GPU");
  EXPECT_EQ(old.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(old.message()), HasSubstr("nvidia-smi"));
  const absl::Status module = CudaStatus(cudaErrorUnknown, "looking for a GPU");
  EXPECT_THAT(std::string(module.message()), HasSubstr("modprobe nvidia-uvm"));
}

TEST_F(CudaTest, ErrorsOfTheDriverAreOfTheSameKinds) {
  EXPECT_EQ(CudaStatus(CUDA_ERROR_OUT_OF_MEMORY, "x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CudaStatus(CUDA_ERROR_ILLEGAL_ADDRESS, "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CudaStatus(CUDA_ERROR_INVALID_VALUE, "x").code(), absl::StatusCode::kInternal);
}

TEST_F(CudaTest, ThePendingErrorIsCleared) {
  const cudaError_t error = cudaFree(this);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidValue);
  EXPECT_FALSE(CudaStatus(error, "cudaFree").ok());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaTest, AFailureToFindTheDriverIsNotRemembered) {
  fake_cuda::FailCall("cudaGetDeviceCount", 1, cudaErrorUnknown);
  EXPECT_EQ(LoadCudaDriver().status().code(), absl::StatusCode::kUnavailable);
  const auto driver = LoadCudaDriver();
  ASSERT_TRUE(driver.ok()) << driver.status();
  EXPECT_TRUE((*driver)->maps_memory);
  EXPECT_NE((*driver)->CtxRecordEvent, nullptr);
  EXPECT_EQ(*LoadCudaDriver(), *driver);
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

}  // namespace
}  // namespace memtide

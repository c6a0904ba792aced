// A program's own kernels, loaded and launched by the driver's functions.
#include <cstdint>
#include <cstring>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/loader.h"
#include "gtest/gtest.h"

namespace memtide::fake_cuda {
namespace {

constexpr size_t kSize = 4096;

template <typename Function>
Function Find(const char* name) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult result = {};
  EXPECT_EQ((*FindCuGetProcAddress())(name, &found, kOldestCuda, 0, &result), CUDA_SUCCESS) << name;
  return reinterpret_cast<Function>(found);
}

// A kernel with two parameters: an address, and the byte that it writes there.
PlayedKernel FillOnHost(void** parameters) {
  const auto address = *static_cast<const CUdeviceptr*>(parameters[0]);
  const auto byte = *static_cast<const uint64_t*>(parameters[1]);
  return {{{address, kSize, true}}, [byte](const std::vector<void*>& operands) {
            std::memset(operands[0], static_cast<int>(byte), kSize);
          }};
}

class ModulesTest : public testing::Test {
 protected:
  ModulesTest() : cu_(**LoadCudaDriver()) {
    DefineKernel("fill", &FillOnHost);
    EXPECT_TRUE(UseGpu(0).ok());
    EXPECT_EQ(Find<decltype(&cuModuleLoadData)>("cuModuleLoadData")(&module_, ".version 6.3"),
              CUDA_SUCCESS);
  }
  ~ModulesTest() override { EXPECT_TRUE(ResetGpu(0).ok()); }

  CUresult Launch(CUdeviceptr address, uint64_t byte) {
    CUfunction fill = nullptr;
    const auto find = Find<decltype(&cuModuleGetFunction)>("cuModuleGetFunction");
    EXPECT_EQ(find(&fill, module_, "fill"), CUDA_SUCCESS);
    void* parameters[] = {&address, &byte};
    return Find<decltype(&cuLaunchKernel)>("cuLaunchKernel")(fill, 1, 1, 1, 1, 1, 1, 0, nullptr,
                                                             parameters, nullptr);
  }

  const CudaDriver& cu_;
  CUmodule module_ = nullptr;
};

TEST_F(ModulesTest, AKernelRunsWithTheParametersOfItsLaunch) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(cu_.MemAlloc(&memory, kSize), CUDA_SUCCESS);
  EXPECT_EQ(Launch(memory, 'k'), CUDA_SUCCESS);
  std::string bytes(kSize, '?');
  EXPECT_EQ(cu_.MemcpyDtoHAsync(bytes.data(), memory, kSize, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu_.CtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(bytes, std::string(kSize, 'k'));
  EXPECT_EQ(cu_.MemFree(memory), CUDA_SUCCESS);
}

TEST_F(ModulesTest, AModuleHasNoOtherKernels) {
  CUfunction function = nullptr;
  const auto find = Find<decltype(&cuModuleGetFunction)>("cuModuleGetFunction");
  EXPECT_EQ(find(&function, module_, "drain"), CUDA_ERROR_NOT_FOUND);
}

TEST_F(ModulesTest, AKernelOnMemoryThatIsNotMappedBreaksTheContext) {
  CUdeviceptr nothing = 0;
  ASSERT_EQ(cu_.vmm.AddressReserve(&nothing, size_t{2} << 20, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(Launch(nothing, 'k'), CUDA_SUCCESS);
  EXPECT_EQ(cu_.CtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace memtide::fake_cuda

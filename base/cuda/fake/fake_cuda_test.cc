// Faults and costs that tests set, pinned host memory, and which threads have a context.
#include "base/cuda/fake/fake_cuda.h"

#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "base/cuda/fake/fake_cuda_fixture.h"
#include "gtest/gtest.h"

namespace memtide::fake_cuda {
namespace {

TEST_F(FakeCudaTest, ACallTakesTheTimeThatItCosts) {
  SetCost("cuMemGetInfo", std::chrono::milliseconds(3));
  const Instant start = Now();
  Free();
  EXPECT_GE(Now() - start, std::chrono::milliseconds(3));
  SetCost("cuMemGetInfo", Duration(0));
}

TEST_F(FakeCudaTest, InjectedFaultsFailTheirCalls) {
  FailCall("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr memory = 0;
  const uint64_t before = CallCount("cuMemAlloc");
  EXPECT_EQ(cuMemAlloc(&memory, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&memory, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc(&memory, 1), CUDA_SUCCESS);
  EXPECT_EQ(CallCount("cuMemAlloc"), before + 3);
  FailCall("*", 1, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemFree(memory), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(FakeCudaTest, HostMemoryIsPinnedOnceAndInPieces) {
  std::vector<char> memory(8192);
  ASSERT_EQ(cuMemHostRegister(&memory[0], 4096, CU_MEMHOSTREGISTER_PORTABLE), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostRegister(&memory[4095], 2, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuMemHostRegister(&memory[4096], (size_t{64} << 30) + 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Held().registrations, 1u);
  EXPECT_EQ(cuMemHostUnregister(&memory[1]), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cuMemHostUnregister(&memory[0]), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, AThreadHasNoContextUntilItTakesOne) {
  std::thread([] {
    CUdeviceptr memory = 0;
    EXPECT_EQ(cuMemAlloc(&memory, kPiece), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_TRUE(UseGpu(1).ok());
    EXPECT_EQ(cuMemAlloc(&memory, kPiece), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(memory), CUDA_SUCCESS);
  }).join();
}

TEST_F(FakeCudaTest, DoesNotSurviveAFork) {
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr memory = 0;
    _exit(cuMemAlloc(&memory, 1) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(FakeCudaTest, NoMoreIsPinnedThanTheLimit) {
  std::string memory(16384, 'x');
  SetPinnedLimit(KiB(12));
  void* host = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_PORTABLE), CUDA_SUCCESS);
  ASSERT_EQ(cuMemHostRegister(&memory[0], 8192, 0), CUDA_SUCCESS);
  EXPECT_EQ(PinnedBytes(), KiB(12));
  EXPECT_EQ(cuMemHostRegister(&memory[8192], 1, 0), CUDA_ERROR_OUT_OF_MEMORY);
  void* more = nullptr;
  EXPECT_EQ(cuMemHostAlloc(&more, 1, CU_MEMHOSTALLOC_PORTABLE), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemFreeHost(host), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostRegister(&memory[8192], 4096, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(&memory[8192]), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(&memory[0]), CUDA_SUCCESS);
}

}  // namespace
}  // namespace memtide::fake_cuda

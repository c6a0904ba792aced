#include "base/cuda/fake/torch_backend.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/importer_process.h"
#include "base/mutex.h"
#include "gtest/gtest.h"

namespace memtide::fake_cuda {
namespace {

const SharedFakeCuda shared("memory=32MiB,tensors=backend,delay_us=0");
constexpr size_t kChunk = size_t{2} << 20;

// A kernel that fills its operands with a letter. It can be held up while it runs.
class Fill {
 public:
  explicit Fill(char letter) : letter_(letter) {}

  int Launch(void* address, size_t size) {
    const memtide_fake_operand operand = {address, size, 1};
    size_ = size;
    return memtide_fake_launch(&operand, 1, {&Fill::Run, &Fill::End, this});
  }
  void Hold() { held_ = true; }
  void AwaitStart() { Await(&started_); }
  void Release() {
    const MutexLock lock(&mutex_);
    held_ = false;
    changed_.SignalAll();
  }
  bool has_run() const { return has_run_; }
  bool has_ended() const { return has_ended_; }

 private:
  static int Run(void* context, const memtide_fake_operand* operand) {
    auto* const self = static_cast<Fill*>(context);
    {
      const MutexLock lock(&self->mutex_);
      self->started_ = true;
      self->changed_.SignalAll();
      while (self->held_) self->changed_.Wait(&self->mutex_);
    }
    std::memset(operand->address, self->letter_, self->size_);
    self->has_run_ = true;
    return 0;
  }
  static void End(void* context) { static_cast<Fill*>(context)->has_ended_ = true; }

  void Await(const bool* condition) {
    const MutexLock lock(&mutex_);
    while (!*condition) changed_.Wait(&mutex_);
  }

  const char letter_;
  size_t size_ = 0;
  Mutex mutex_;
  CondVar changed_;
  bool started_ = false, held_ = false;
  std::atomic<bool> has_run_{false}, has_ended_{false};
};

class TorchBackendTest : public testing::Test {
 protected:
  TorchBackendTest() : cu_(**LoadCudaDriver()) {
    EXPECT_TRUE(UseGpu(0).ok());
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access_.location = properties_.location;
    access_.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  ~TorchBackendTest() override {
    SetDelay(std::chrono::microseconds(0));
    EXPECT_TRUE(ResetGpu(0).ok());
  }

  static char* Allocate(size_t size) {
    void* memory = nullptr;
    EXPECT_EQ(memtide_fake_malloc(&memory, size), CUDA_SUCCESS);
    return static_cast<char*>(memory);
  }
  // Maps `count` pieces beside one another.
  char* Map(int count) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cu_.vmm.AddressReserve(&address, count * kChunk, 0, 0, 0), CUDA_SUCCESS);
    for (int i = 0; i < count; ++i) {
      CUmemGenericAllocationHandle handle = 0;
      EXPECT_EQ(cu_.vmm.Create(&handle, kChunk, &properties_, 0), CUDA_SUCCESS);
      EXPECT_EQ(cu_.vmm.Map(address + i * kChunk, kChunk, 0, handle, 0), CUDA_SUCCESS);
    }
    EXPECT_EQ(cu_.vmm.SetAccess(address, count * kChunk, &access_, 1), CUDA_SUCCESS);
    return reinterpret_cast<char*>(address);
  }
  static std::string Read(const char* memory, size_t size) {
    std::string read(size, '?');
    EXPECT_EQ(cuMemcpyDtoHAsync(read.data(), DeviceAddress(memory), size, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(memtide_fake_synchronize(), CUDA_SUCCESS);
    return read;
  }
  static bool CpuCanRead(const char* memory) {
    int ends[2] = {};
    EXPECT_EQ(pipe(ends), 0);
    const bool read = write(ends[1], memory, 1) == 1;
    EXPECT_TRUE(read || errno == EFAULT) << std::strerror(errno);
    close(ends[0]);
    close(ends[1]);
    return read;
  }

  const CudaDriver& cu_;
  CUmemAllocationProp properties_ = {};
  CUmemAccessDesc access_ = {};
};

TEST_F(TorchBackendTest, AKernelRunsAfterThoseThatWereLaunchedBefore) {
  char* const memory = Allocate(kChunk);
  Fill first('a'), second('b');
  first.Hold();
  ASSERT_EQ(first.Launch(memory, kChunk), 0);
  ASSERT_EQ(second.Launch(memory, kChunk), 0);
  first.AwaitStart();
  EXPECT_FALSE(second.has_run());
  first.Release();
  EXPECT_EQ(memtide_fake_synchronize(), 0);
  EXPECT_TRUE(second.has_ended());
  EXPECT_EQ(Read(memory, kChunk), std::string(kChunk, 'b'));
  EXPECT_EQ(memtide_fake_free(memory), 0);
}

TEST_F(TorchBackendTest, AnEventIsNotReachedWhileTheLastKernelRuns) {
  char* const memory = Allocate(kChunk);
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
  Fill fill('a');
  fill.Hold();
  ASSERT_EQ(fill.Launch(memory, kChunk), 0);
  fill.AwaitStart();
  ASSERT_EQ(cuEventRecord(event, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  fill.Release();
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_TRUE(fill.has_run());
}

TEST_F(TorchBackendTest, OnlyKernelsCanAccessMemory) {
  char* const allocated = Allocate(kChunk);
  char* const mapped = Map(1);
  EXPECT_FALSE(CpuCanRead(allocated));
  EXPECT_FALSE(CpuCanRead(mapped));
  Fill fill('x');
  ASSERT_EQ(fill.Launch(mapped, kChunk), 0);
  EXPECT_EQ(Read(mapped, 1), "x");
}

TEST_F(TorchBackendTest, AnOperandMayLieOverSeveralMappings) {
  char* const memory = Map(3);
  Fill fill('y');
  ASSERT_EQ(fill.Launch(memory + 10, 2 * kChunk), 0);
  EXPECT_EQ(Read(memory + 10, 2 * kChunk), std::string(2 * kChunk, 'y'));
  EXPECT_EQ(Read(memory, 10), std::string(10, kPoison));
}

TEST_F(TorchBackendTest, FreeingWaitsForKernels) {
  char* const memory = Allocate(kChunk);
  SetDelay(std::chrono::milliseconds(50));
  Fill fill('z');
  ASSERT_EQ(fill.Launch(memory, kChunk), 0);
  EXPECT_EQ(memtide_fake_free(memory), 0);
  EXPECT_TRUE(fill.has_run());
  EXPECT_EQ(memtide_fake_synchronize(), 0);
}

TEST_F(TorchBackendTest, AKernelWithoutAccessBreaksTheContext) {
  char* const memory = Map(1);
  access_.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  ASSERT_EQ(cu_.vmm.SetAccess(address, kChunk, &access_, 1), CUDA_SUCCESS);
  Fill fill('w');
  ASSERT_EQ(fill.Launch(memory, 1), 0);
  EXPECT_EQ(memtide_fake_synchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FALSE(fill.has_run());
}

TEST_F(TorchBackendTest, UnmappingUnderAKernelBreaksTheContext) {
  char* const memory = Map(1);
  Fill fill('u');
  fill.Hold();
  ASSERT_EQ(fill.Launch(memory, kChunk), 0);
  fill.AwaitStart();
  std::thread unmapping([&] { cu_.vmm.Unmap(reinterpret_cast<CUdeviceptr>(memory), kChunk); });
  size_t free = 0, total = 0;
  while (memtide_fake_memory(&free, &total) != CUDA_ERROR_ILLEGAL_ADDRESS)
    std::this_thread::yield();
  fill.Release();
  unmapping.join();
  EXPECT_EQ(memtide_fake_synchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace memtide::fake_cuda

// CudaDeviceFixture: a CudaDevice on the fake GPU, the log lines that it writes, and a check that
// each test frees all GPU memory. For tests, from one thread.
#ifndef MEMTIDE_DAEMON_DEVICE_TESTING_CUDA_DEVICE_FIXTURE_H_
#define MEMTIDE_DAEMON_DEVICE_TESTING_CUDA_DEVICE_FIXTURE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/importer_process.h"
#include "base/mutex.h"
#include "daemon/device/cuda_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {

class CudaDeviceFixture : public testing::Test {
 protected:
  CudaDeviceFixture() { fake_cuda::SetDelay(std::chrono::microseconds(50)); }
  ~CudaDeviceFixture() override {
    device_.reset();
    fake_cuda::ClearFaults();
    // Frees what a broken context still holds.
    EXPECT_TRUE(ResetGpu(0).ok());
    EXPECT_EQ(Free(), total_);
  }

  CudaDeviceOptions Options() {
    CudaDeviceOptions options;
    options.patience = std::chrono::milliseconds(50);
    options.warn = [this](const std::string& line) {
      MutexLock lock(&mutex_);
      lines_.push_back(line);
    };
    return options;
  }
  void Open() {
    auto device = CudaDevice::Open(Options());
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    EXPECT_EQ(Free(), total_);
  }
  std::unique_ptr<DeviceMemory> Allocate(const std::string& name, Bytes size,
                                         MemoryKind kind = MemoryKind::kCudaDescriptor) {
    auto memory = device_->Allocate(name, size, kind);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  absl::Status Write(DeviceMemory& memory, const std::string& bytes) {
    return device_->CopyIn(memory, Bytes(0), bytes.data(), Bytes(bytes.size()));
  }
  std::string Read(const DeviceMemory& memory, size_t size) {
    std::string bytes(size, '?');
    const absl::Status status = device_->CopyOut(memory, Bytes(0), &bytes[0], Bytes(size));
    EXPECT_TRUE(status.ok()) << status;
    return bytes;
  }
  std::vector<std::string> Lines() {
    MutexLock lock(&mutex_);
    return lines_;
  }
  static Bytes Free() {
    size_t free = 0, total = 0;
    EXPECT_TRUE(UseGpu(0).ok());
    EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return Bytes(free);
  }

  const Bytes total_ = MiB(64);
  Mutex mutex_;
  std::vector<std::string> lines_;
  std::unique_ptr<CudaDevice> device_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_TESTING_CUDA_DEVICE_FIXTURE_H_

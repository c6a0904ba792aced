// Tests of address spaces on the fake CUDA share memory that a daemon lends, and work on it.
#ifndef MEMTIDE_CLIENT_CUDA_TESTING_CUDA_SPACE_HARNESS_H_
#define MEMTIDE_CLIENT_CUDA_TESTING_CUDA_SPACE_HARNESS_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "client/cuda/cuda_space.h"

namespace memtide::client {

inline constexpr Bytes kChunk = MiB(4);

inline CUmemAllocationProp Properties() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

// The daemon's side of a region.
class Lent {
 public:
  explicit Lent(Bytes size = kChunk) : size_(size) {
    const CUmemAllocationProp properties = Properties();
    EXPECT_EQ(driver_.vmm.Create(&handle_, size.count(), &properties, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver_.vmm.AddressReserve(&base_, size.count(), 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver_.vmm.Map(base_, size.count(), 0, handle_, 0), CUDA_SUCCESS);
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    EXPECT_EQ(driver_.vmm.SetAccess(base_, size.count(), &access, 1), CUDA_SUCCESS);
  }
  ~Lent() {
    driver_.vmm.Unmap(base_, size_.count());
    driver_.vmm.AddressFree(base_, size_.count());
    driver_.vmm.Release(handle_);
  }
  Region Share() const {
    int fd = -1;
    EXPECT_EQ(driver_.vmm.ExportToShareableHandle(&fd, handle_,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    Region region;
    region.kind = MemoryKind::kCudaDescriptor;
    region.size = size_;
    region.memory = Descriptor(fd);
    return region;
  }
  char* data() const { return reinterpret_cast<char*>(base_); }

 private:
  const CudaDriver& driver_ = **LoadCudaDriver();
  const Bytes size_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr base_ = 0;
};

inline std::string Uuid() {
  const CudaUuid uuid = CudaDevices()->front().uuid;
  return std::string(uuid.data(), uuid.size());
}

inline std::unique_ptr<AddressSpace> Reserve() {
  auto space = ReserveCudaSpace({kChunk, 8}, Uuid());
  EXPECT_TRUE(space.ok()) << space.status();
  return *std::move(space);
}

// Sets MEMTIDE_PROTECT=1 until it is destroyed.
class Protecting {
 public:
  Protecting() { setenv("MEMTIDE_PROTECT", "1", 1); }
  ~Protecting() { unsetenv("MEMTIDE_PROTECT"); }
};

// A region mapped at one place, and streams whose work on it is delayed.
class CudaSpaceWorkTest : public testing::Test {
 protected:
  static constexpr PlaceId kPlace = PlaceId(1);

  CudaSpaceWorkTest() {
    EXPECT_TRUE(UseGpu(0).ok());
    EXPECT_TRUE(space_->Map(kPlace, &region_, Bytes(0), Access::kWrite).ok());
  }
  ~CudaSpaceWorkTest() override {
    fake_cuda::SetDelay(std::chrono::microseconds(200));
    for (const CUstream stream : streams_) cuStreamDestroy(stream);
  }

  // Launches writes of 64 letters on each of two new streams; the second's follow the first's in
  // memory.
  void BeginToWrite(char first, char second) {
    for (CUstream& stream : streams_) {
      ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    }
    fake_cuda::SetDelay(std::chrono::milliseconds(50));
    const CUdeviceptr address = fake_cuda::DeviceAddress(space_->address(kPlace));
    ASSERT_EQ(cuMemsetD8Async(address, first, 64, streams_[0]), CUDA_SUCCESS);
    ASSERT_EQ(cuMemsetD8Async(address + 64, second, 64, streams_[1]), CUDA_SUCCESS);
  }
  void UseInAnEpoch(PlaceId place) {
    space_->EndUse({place});
    space_->BeginMoment();
  }
  std::string Written() const { return std::string(lent_.data(), 128); }

  const Lent lent_;
  const std::unique_ptr<AddressSpace> space_ = Reserve();
  Region region_ = lent_.Share();
  CUstream streams_[2] = {};
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_CUDA_TESTING_CUDA_SPACE_HARNESS_H_

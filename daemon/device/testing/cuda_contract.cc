// The device contract on a CUDA device, whichever CUDA is linked: memory by descriptor and by
// legacy handle, read and written by another process as well ($CUDA_IMPORTER: that program).
#include "base/cuda/fake/importer_process.h"
#include "daemon/device/cuda_device.h"
#include "daemon/device/testing/device_contract.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

class BorrowedElsewhere : public Borrowed {
 public:
  explicit BorrowedElsewhere(const MemoryExport& exported) : process_(exported) {}
  std::string Read(Bytes offset, Bytes size) override { return process_.Peek(offset, size); }
  void Write(Bytes offset, const std::string& bytes) override { process_.Poke(offset, bytes); }

 private:
  ImporterProcess process_;
};

DeviceUnderTest Lending(MemoryKind kind) {
  return DeviceUnderTest([] { return *CudaDevice::Open(CudaDeviceOptions()); }, kind,
                         std::make_unique<BorrowedElsewhere, const MemoryExport&>);
}
INSTANTIATE_TEST_SUITE_P(CudaDescriptor, DeviceContract,
                         testing::Values(Lending(MemoryKind::kCudaDescriptor)));
INSTANTIATE_TEST_SUITE_P(CudaIpc, DeviceContract, testing::Values(Lending(MemoryKind::kCudaIpc)));

}  // namespace
}  // namespace memtide

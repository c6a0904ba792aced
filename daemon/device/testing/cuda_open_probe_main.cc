// cuda_open_probe [DEVICE]: opens the GPU, allocates a little memory and prints the result, for
// cuda_open_test.sh.
#include <iostream>

#include "daemon/device/cuda_device.h"

namespace memtide {
namespace {

int Main(int argc, char** argv) {
  CudaDeviceOptions options;
  if (argc > 1) options.device = argv[1];
  const auto device = CudaDevice::Open(options);
  if (!device.ok()) {
    std::cout << device.status() << "\n";
    return 1;
  }
  std::cout << (*device)->Describe() << "\n";
  for (const MemoryKind kind : (*device)->kinds()) {
    const auto memory = (*device)->Allocate("memory", MiB(2), kind);
    std::cout << (kind == MemoryKind::kCudaDescriptor ? "descriptor" : "legacy") << ": "
              << memory.status() << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) { return memtide::Main(argc, argv); }

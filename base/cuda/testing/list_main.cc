// list: prints the GPUs, by the driver's library that the loader finds, for libcuda_test.sh.
#include <iostream>

#include "base/cuda/cuda.h"

int main() {
  const auto devices = memtide::CudaDevices();
  if (!devices.ok()) {
    std::cout << devices.status() << "\n";
    return 1;
  }
  for (const memtide::CudaDeviceFacts& facts : *devices) {
    std::cout << facts.ordinal << " " << facts.name << " " << facts.FormatUuid() << " "
              << memtide::UseGpu(facts.ordinal) << "\n";
  }
  return 0;
}

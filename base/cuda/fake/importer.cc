// importer fd NUMBER SIZE | importer ipc HEX: opens that memory, says "ready", and then does what
// each line of standard input says: "peek OFFSET SIZE" writes the bytes, "poke OFFSET TEXT" changes
// them and says "done". Ends when its input does. For tests: see importer_process.h.
#include <cstring>
#include <iostream>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "base/check.h"
#include "base/cuda/cuda.h"

namespace memtide {
namespace {

char* OpenDescriptor(int fd, size_t size) {
  const auto driver = LoadCudaDriver();
  MEMTIDE_CHECK(driver.ok()) << driver.status();
  const CudaDriver& cu = **driver;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  void* const descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  MEMTIDE_CHECK(cu.MemImportFromShareableHandle(
                    &handle, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
  MEMTIDE_CHECK(cu.MemAddressReserve(&address, size, 0, 0, 0) == CUDA_SUCCESS);
  MEMTIDE_CHECK(cu.MemMap(address, size, 0, handle, 0) == CUDA_SUCCESS);
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MEMTIDE_CHECK(cu.MemSetAccess(address, size, &access, 1) == CUDA_SUCCESS);
  return reinterpret_cast<char*>(address);
}

char* OpenIpc(const std::string& hex) {
  const std::string bytes = absl::HexStringToBytes(hex);
  cudaIpcMemHandle_t handle;
  MEMTIDE_CHECK(bytes.size() == sizeof(handle)) << hex;
  std::memcpy(&handle, bytes.data(), sizeof(handle));
  void* address = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&address, handle, cudaIpcMemLazyEnablePeerAccess);
  MEMTIDE_CHECK(error == cudaSuccess) << cudaGetErrorName(error);
  return static_cast<char*>(address);
}

uint64_t Number(const std::string& text) {
  uint64_t number = 0;
  MEMTIDE_CHECK(absl::SimpleAtoi(text, &number)) << text;
  return number;
}

int Main(int argc, char** argv) {
  const bool by_descriptor = argc == 4 && std::string(argv[1]) == "fd";
  MEMTIDE_CHECK(by_descriptor || argc == 3) << argc;
  char* const memory = by_descriptor
                           ? OpenDescriptor(static_cast<int>(Number(argv[2])), Number(argv[3]))
                           : OpenIpc(argv[2]);
  std::cout << "ready\n" << std::flush;
  std::string what;
  uint64_t offset = 0;
  while (std::cin >> what >> offset) {
    std::string text;
    std::cin >> text;
    if (what == "peek") {
      std::string bytes(Number(text), '?');
      MEMTIDE_CHECK(cudaMemcpy(&bytes[0], memory + offset, bytes.size(), cudaMemcpyDeviceToHost) ==
                    cudaSuccess);
      std::cout << bytes << "\n" << std::flush;
    } else {
      MEMTIDE_CHECK(cudaMemcpy(memory + offset, text.data(), text.size(), cudaMemcpyHostToDevice) ==
                    cudaSuccess);
      std::cout << "done\n" << std::flush;
    }
  }
  return 0;
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) { return memtide::Main(argc, argv); }

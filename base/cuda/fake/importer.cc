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

CUdeviceptr OpenDescriptor(const CudaDriver& cu, int fd, size_t size) {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  void* const descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  MEMTIDE_CHECK(cu.vmm.ImportFromShareableHandle(
                    &handle, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
  MEMTIDE_CHECK(cu.vmm.AddressReserve(&address, size, 0, 0, 0) == CUDA_SUCCESS);
  MEMTIDE_CHECK(cu.vmm.Map(address, size, 0, handle, 0) == CUDA_SUCCESS);
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MEMTIDE_CHECK(cu.vmm.SetAccess(address, size, &access, 1) == CUDA_SUCCESS);
  return address;
}

CUdeviceptr OpenIpc(const CudaDriver& cu, const std::string& hex) {
  const std::string bytes = absl::HexStringToBytes(hex);
  CUipcMemHandle handle;
  MEMTIDE_CHECK(bytes.size() == sizeof(handle)) << hex;
  std::memcpy(&handle, bytes.data(), sizeof(handle));
  CUdeviceptr address = 0;
  const absl::Status opened = CudaStatus(
      cu.IpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "opening memory");
  MEMTIDE_CHECK(opened.ok()) << opened;
  return address;
}

uint64_t Number(const std::string& text) {
  uint64_t number = 0;
  MEMTIDE_CHECK(absl::SimpleAtoi(text, &number)) << text;
  return number;
}

int Main(int argc, char** argv) {
  const bool by_descriptor = argc == 4 && std::string(argv[1]) == "fd";
  MEMTIDE_CHECK(by_descriptor || argc == 3) << argc;
  const auto driver = LoadCudaDriver();
  MEMTIDE_CHECK(driver.ok()) << driver.status();
  const CudaDriver& cu = **driver;
  const absl::Status used = UseGpu(0);
  MEMTIDE_CHECK(used.ok()) << used;
  const CUdeviceptr memory =
      by_descriptor ? OpenDescriptor(cu, static_cast<int>(Number(argv[2])), Number(argv[3]))
                    : OpenIpc(cu, argv[2]);
  std::cout << "ready\n" << std::flush;
  std::string what;
  uint64_t offset = 0;
  while (std::cin >> what >> offset) {
    std::string text;
    std::cin >> text;
    if (what == "peek") {
      std::string bytes(Number(text), '?');
      MEMTIDE_CHECK(cu.MemcpyDtoHAsync(&bytes[0], memory + offset, bytes.size(), nullptr) ==
                    CUDA_SUCCESS);
      MEMTIDE_CHECK(cu.StreamSynchronize(nullptr) == CUDA_SUCCESS);
      std::cout << bytes << "\n" << std::flush;
    } else {
      MEMTIDE_CHECK(cu.MemcpyHtoDAsync(memory + offset, text.data(), text.size(), nullptr) ==
                    CUDA_SUCCESS);
      MEMTIDE_CHECK(cu.StreamSynchronize(nullptr) == CUDA_SUCCESS);
      std::cout << "done\n" << std::flush;
    }
  }
  return 0;
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) { return memtide::Main(argc, argv); }

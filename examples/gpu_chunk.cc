// A program without PyTorch that stores data in memtide's chunks on a GPU.
//
//   gpu_chunk [--ipc] SOCKET_DIR
//
// Allocates a chunk, fills it on the GPU, evicts it to the daemon's lowest tier (SSD), fetches it
// again and verifies every byte. By default memory comes by descriptor, and the chunk's address
// never changes; with --ipc it comes by legacy CUDA IPC handle, at a different address for each
// acquisition.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/cuda/cuda.h"
#include "client/memtide.h"

namespace {

[[noreturn]] void Fail(const char* what, const char* why) {
  std::fprintf(stderr, "gpu_chunk: %s: %s\n", what, why);
  std::exit(1);
}

void Check(const char* what, int status) {
  if (status != MEMTIDE_OK) Fail(what, memtide_last_error());
}

void Check(const absl::Status& status) {
  if (!status.ok()) Fail("CUDA", std::string(status.message()).c_str());
}

void Check(const char* what, CUresult error) { Check(memtide::CudaStatus(error, what)); }

const memtide::CudaDriver& Driver() {
  const auto driver = memtide::LoadCudaDriver();
  Check(driver.status());
  return **driver;
}

CUdeviceptr DeviceAddress(const char* chunk) { return reinterpret_cast<CUdeviceptr>(chunk); }

// Each block of 4 KiB of a chunk has a value of its own.
constexpr size_t kBlock = 4096;
unsigned char ValueOf(size_t block) { return static_cast<unsigned char>((block * 37 + 11) % 251); }

void Fill(char* chunk, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kBlock) {
    Check("cuMemsetD8Async",
          Driver().MemsetD8Async(DeviceAddress(chunk + at), ValueOf(at / kBlock), kBlock, nullptr));
  }
}

void Verify(const char* chunk, size_t bytes) {
  std::vector<char> copy(bytes);
  Check("cuMemcpyDtoHAsync",
        Driver().MemcpyDtoHAsync(copy.data(), DeviceAddress(chunk), bytes, nullptr));
  Check("cuStreamSynchronize", Driver().StreamSynchronize(nullptr));
  for (size_t at = 0; at < bytes; ++at) {
    if (copy[at] != static_cast<char>(ValueOf(at / kBlock))) Fail("verify", "the bytes differ");
  }
}

char* AddressOf(memtide_client* client, uint32_t place) {
  void* address = nullptr;
  Check("memtide_address", memtide_address(client, place, &address));
  return static_cast<char*>(address);
}

}  // namespace

int main(int argc, char** argv) {
  const bool ipc = argc == 3 && std::strcmp(argv[1], "--ipc") == 0;
  if (argc != (ipc ? 3 : 2)) Fail("usage", "gpu_chunk [--ipc] SOCKET_DIR");

  memtide_options options = {};
  options.struct_bytes = sizeof(options);
  options.socket_dir = argv[argc - 1];
  options.program = "gpu_chunk";
  options.chunk_bytes = 4 << 20;
  options.device_memory = ipc ? MEMTIDE_CUDA_IPC : MEMTIDE_CUDA_DESCRIPTOR;
  memtide_client* client = nullptr;
  Check("memtide_open", memtide_open(&options, &client));
  memtide_properties properties = {};
  properties.struct_bytes = sizeof(properties);
  Check("memtide_get_properties", memtide_get_properties(client, &properties));

  Check(memtide::UseGpu(properties.dl_device_id));

  uint32_t place = 0;
  Check("memtide_allocate", memtide_allocate(client, MEMTIDE_OTHER, 1, &place));
  Check("memtide_acquire", memtide_acquire(client, &place, 1, MEMTIDE_WRITE, -1));
  const char* const first = AddressOf(client, place);
  Fill(AddressOf(client, place), properties.chunk_bytes);
  // No synchronization is needed: the library waits for work launched before this call.
  Check("memtide_release", memtide_release(client, &place, 1));

  Check("memtide_evict", memtide_evict(client, &place, 1));
  Check("memtide_acquire", memtide_acquire(client, &place, 1, MEMTIDE_READ, -1));
  const char* const second = AddressOf(client, place);
  Verify(second, properties.chunk_bytes);
  if (!ipc && second != first) Fail("verify", "the chunk's address has changed");
  Check("memtide_release", memtide_release(client, &place, 1));
  Check("memtide_free", memtide_free(client, place, 1));
  memtide_close(client);
  std::printf("gpu_chunk: %llu bytes, written on the GPU, evicted, fetched by %s: all equal\n",
              static_cast<unsigned long long>(properties.chunk_bytes),
              ipc ? "a legacy handle" : "a descriptor");
  return 0;
}

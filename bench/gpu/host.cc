// Host memory that a GPU copies from and to, and disks as well.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/shared_memory.h"
#include "bench/gpu/child.h"
#include "bench/gpu/mapped_memory.h"
#include "bench/gpu/probes.h"
#include "bench/gpu/report.h"

namespace memtide::bench {
namespace {

constexpr Bytes kRegion = MiB(256);

SharedMemory Region() {
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create("gpu-probe", kRegion);
  OrDie(memory.status());
  return *std::move(memory);
}

// "yes", or why not.
std::string TryRegister(char* memory, size_t bytes) {
  const cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
  cudaGetLastError();
  return error == cudaSuccess ? "yes" : cudaGetErrorName(error);
}

// Reads and writes through the page cache's back: what a disk does with pinned memory.
std::string TryDirect(char* memory) {
  std::string path = absl::StrCat(getenv("TMPDIR") != nullptr ? getenv("TMPDIR") : "/var/tmp",
                                  "/gpu-probe-XXXXXX");
  const int fd = mkostemp(&path[0], O_DIRECT | O_CLOEXEC);
  if (fd < 0) return absl::StrCat("no file: ", strerror(errno));
  unlink(path.c_str());
  constexpr size_t kBytes = 4 << 20;
  memset(memory, 'd', kBytes);
  const bool wrote = pwrite(fd, memory, kBytes, 0) == static_cast<ssize_t>(kBytes);
  memset(memory, 0, kBytes);
  const bool read = wrote && pread(fd, memory, kBytes, 0) == static_cast<ssize_t>(kBytes);
  const std::string answer = read && memory[kBytes - 1] == 'd' ? "yes" : strerror(errno);
  close(fd);
  return answer;
}

}  // namespace

int PlayRegistrar(int socket) {
  int descriptor = -1;
  Hear(socket, &descriptor);
  void* const memory =
      mmap(nullptr, kRegion.count(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  MEMTIDE_CHECK(memory != MAP_FAILED);
  const rlimit little = {64 << 10, 64 << 10};
  setrlimit(RLIMIT_MEMLOCK, &little);
  Say(socket, TryRegister(static_cast<char*>(memory), kRegion.count()) == "yes" ? 'y' : 'n');
  return 0;
}

void ProbeHostMemory() {
  SharedMemory memory = Region();
  Answer("shared memory of 256 MiB can be registered", TryRegister(memory.data(), kRegion.count()));
  Child other("registrar");
  Say(other.socket(), 'r', memory.fd());
  Answer("and by a second process at once, with a locked-memory limit of 64 KiB",
         Hear(other.socket()) == 'y' ? "yes" : "no");
  other.Join();
  Answer("direct reads and writes of files work on registered memory", TryDirect(memory.data()));
  OrDie(cudaHostUnregister(memory.data()), "cudaHostUnregister");
  Figure("registering 256 MiB",
         MedianMicroseconds(3,
                            [&] {
                              OrDie(cudaHostRegister(memory.data(), kRegion.count(),
                                                     cudaHostRegisterPortable),
                                    "cudaHostRegister");
                              OrDie(cudaHostUnregister(memory.data()), "cudaHostUnregister");
                            }) /
             1e3,
         "ms");
}

}  // namespace memtide::bench

// Probes host memory that both a GPU and disks copy from and to.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/shared_memory.h"
#include "bench/gpu/child.h"
#include "bench/gpu/mapped_memory.h"
#include "bench/gpu/probes.h"
#include "bench/gpu/report.h"
#include "daemon/io/open_disk.h"

namespace memtide::bench {
namespace {

constexpr Bytes kRegion = MiB(256);
constexpr Bytes kTransfer = MiB(16);

SharedMemory Region() {
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create("gpu-probe", kRegion);
  OrDie(memory.status());
  return *std::move(memory);
}

// Returns "yes", or the error.
std::string TryRegister(char* memory, size_t bytes) {
  UseFirstGpu();
  const CUresult error = Driver().MemHostRegister(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE);
  return error == CUDA_SUCCESS ? "yes" : NameOf(error);
}

// Makes a transfer with the daemon's Disk, which registers buffers with io_uring where permitted.
absl::Status Move(Disk* disk, DiskTransfer::Direction direction, char* memory) {
  DiskTransfer transfer;
  transfer.direction = direction;
  transfer.store = StoreId(1);
  transfer.size = kTransfer;
  transfer.memory = memory;
  std::promise<absl::Status> done;
  disk->Start(transfer, [&done](absl::Status status) { done.set_value(std::move(status)); });
  return done.get_future().get();
}

// Writes and reads a file with direct I/O. Returns "yes" and the disk's description, or the error.
std::string TryDisk(char* memory, Bytes size) {
  const char* const parent = getenv("TMPDIR") != nullptr ? getenv("TMPDIR") : "/var/tmp";
  std::string directory = absl::StrCat(parent, "/gpu-probe-XXXXXX");
  if (mkdtemp(&directory[0]) == nullptr) return absl::StrCat(directory, ": ", strerror(errno));
  std::string answer;
  {
    DiskOptions options;
    options.directories = {directory};
    absl::StatusOr<std::unique_ptr<Disk>> disk = OpenDisk(options);
    absl::Status status = disk.status();
    if (status.ok()) status = (*disk)->MakeStore(StoreId(1), kTransfer);
    if (status.ok()) {
      (*disk)->AddBuffer(memory, size);
      memset(memory, 'd', kTransfer.count());
      status = Move(disk->get(), DiskTransfer::Direction::kWrite, memory);
      memset(memory, 0, kTransfer.count());
      if (status.ok()) status = Move(disk->get(), DiskTransfer::Direction::kRead, memory);
      answer = absl::StrCat("yes, ", (*disk)->Describe().substr(0, 32));
      (*disk)->RemoveBuffer(memory);
      (*disk)->DropStore(StoreId(1));
    }
    if (!status.ok()) answer = status.ToString();
    if (status.ok() && memory[kTransfer.count() - 1] != 'd') answer = "no: other bytes";
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  return answer;
}

// Tests host memory that CUDA allocates and can export. If direct I/O works on it, host pools would
// not have to be registered.
std::string TryNumaMemory() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  // CU_MEM_LOCATION_TYPE_HOST_NUMA, which the headers of CUDA 12.0 lack.
  properties.location.type = static_cast<CUmemLocationType>(3);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  constexpr size_t kBytes = 32 << 20;
  CUresult error = Driver().vmm.Create(&handle, kBytes, &properties, 0);
  if (error != CUDA_SUCCESS) return absl::StrCat("there is none: error ", static_cast<int>(error));
  CUdeviceptr address = 0;
  OrDie(Driver().vmm.AddressReserve(&address, kBytes, 0, 0, 0), "cuMemAddressReserve");
  OrDie(Driver().vmm.Map(address, kBytes, 0, handle, 0), "cuMemMap");
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  error = Driver().vmm.SetAccess(address, kBytes, &access, 1);
  const std::string answer =
      error == CUDA_SUCCESS
          ? TryDisk(reinterpret_cast<char*>(address), Bytes(kBytes))
          : absl::StrCat("the host cannot access it: error ", static_cast<int>(error));
  OrDie(Driver().vmm.Unmap(address, kBytes), "cuMemUnmap");
  OrDie(Driver().vmm.AddressFree(address, kBytes), "cuMemAddressFree");
  OrDie(Driver().vmm.Release(handle), "cuMemRelease");
  return answer;
}

}  // namespace

int PlayRegistrar(const std::string& unused, int socket) {
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

void ProbePinning() {
  UseFirstGpu();
  const size_t size = Scaled(size_t{1} << 30, size_t{16} << 20);
  for (const bool huge : {false, true}) {
    void* const memory =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MEMTIDE_CHECK(memory != MAP_FAILED);
    madvise(memory, size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(memory, 1, size);
    const Instant start = Now();
    OrDie(Driver().MemHostRegister(memory, size, CU_MEMHOSTREGISTER_PORTABLE), "cuMemHostRegister");
    Figure(huge ? "pinning 1 GiB of huge pages" : "pinning 1 GiB of 4 KiB pages",
           MicrosecondsSince(start) / 1e3, "ms");
    OrDie(Driver().MemHostUnregister(memory), "cuMemHostUnregister");
    munmap(memory, size);
  }
}

void ProbeHostMemory() {
  SharedMemory memory = Region();
  Answer("shared memory of 256 MiB can be registered", TryRegister(memory.data(), kRegion.count()));
  Child other("registrar");
  Say(other.socket(), 'r', memory.fd());
  Answer("and by a second process at once, with a locked-memory limit of 64 KiB",
         Hear(other.socket()) == 'y' ? "yes" : "no");
  other.Join();
  Answer("direct reads and writes of files work on registered memory",
         TryDisk(memory.data(), kRegion));
  Answer("and on host memory that CUDA allocated (HOST_NUMA)", TryNumaMemory());
  OrDie(Driver().MemHostUnregister(memory.data()), "cuMemHostUnregister");
  Figure("registering 256 MiB",
         MedianMicroseconds(3,
                            [&] {
                              OrDie(Driver().MemHostRegister(memory.data(), kRegion.count(),
                                                             CU_MEMHOSTREGISTER_PORTABLE),
                                    "cuMemHostRegister");
                              OrDie(Driver().MemHostUnregister(memory.data()),
                                    "cuMemHostUnregister");
                            }) /
             1e3,
         "ms");
}

}  // namespace memtide::bench

// Probes GPU memory that two processes share.
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "bench/gpu/child.h"
#include "bench/gpu/mapped_memory.h"
#include "bench/gpu/probes.h"
#include "bench/gpu/report.h"

namespace memtide::bench {
namespace {

constexpr size_t kSmall = 2 << 20;
constexpr Duration kLongestWait = std::chrono::seconds(10);

const char* YesOrNo(bool yes) { return yes ? "yes" : "no"; }

// Much larger than a CUDA context, whose memory is freed with its process, too.
size_t SharedBytes() {
  const size_t quarter = FreeGpuMemory() / 4 / kSmall * kSmall;
  return std::min<size_t>(quarter, Scaled(size_t{4} << 30, size_t{64} << 20));
}

// Waits until `before + bytes` are free, and returns the milliseconds; -1 after kLongestWait.
double MillisecondsUntilFree(size_t before, size_t bytes) {
  const Instant start = Now();
  while (Now() - start < kLongestWait) {
    if (FreeGpuMemory() >= before + bytes) {
      return std::chrono::duration<double, std::milli>(Now() - start).count();
    }
    usleep(200);  // tidy(sleep): a driver sends no event when memory is free.
  }
  return -1;
}

}  // namespace

int PlayImporter(const std::string& bytes, int socket) {
  int descriptor = -1;
  Hear(socket, &descriptor);
  uint64_t size = 0;
  MEMTIDE_CHECK(absl::SimpleAtoi(bytes, &size)) << bytes;
  MappedMemory memory = MappedMemory::Import(descriptor, size);
  close(descriptor);
  memory.Map();
  memory.ReleaseHandle();
  memory.Fill('i');
  Say(socket, 'm');
  Hear(socket);  // Blocks until this process is killed.
  return 0;
}

int PlayExporter(const std::string& unused, int socket) {
  MappedMemory memory = MappedMemory::Create(kSmall);
  memory.Map();
  memory.Fill('e');
  Say(socket, 'e', memory.Export());
  Hear(socket);
  return 0;
}

int PlayLockedDown(const std::string& unused, int socket) {
#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif
  // The same restriction as systemd's MemoryDenyWriteExecute=, set with prctl (Linux 6.3).
  if (prctl(PR_SET_MDWE, 1, 0, 0, 0) != 0) {
    Say(socket, '?');
    return 0;
  }
  CUdeviceptr memory = 0;
  const auto driver = LoadCudaDriver();
  const bool works = driver.ok() && UseGpu(0).ok() &&
                     (*driver)->MemAlloc(&memory, kSmall) == CUDA_SUCCESS &&
                     (*driver)->MemsetD8Async(memory, 1, kSmall, nullptr) == CUDA_SUCCESS &&
                     (*driver)->CtxSynchronize() == CUDA_SUCCESS;
  Say(socket, works ? 'y' : 'n');
  return 0;
}

void ProbeExportWithoutContext() {
  CUcontext context = nullptr;
  const MappedMemory memory = MappedMemory::Create(kSmall);
  const int descriptor = memory.Export();
  const CUresult result = Driver().CtxGetCurrent(&context);
  close(descriptor);
  Answer("memory is made and exported by a process without a CUDA context",
         YesOrNo(result == CUDA_SUCCESS && context == nullptr));
}

void ProbeReleaseWhileMapped() {
  UseFirstGpu();
  const size_t bytes = SharedBytes();
  Child importer("importer", absl::StrCat(bytes));
  {
    const MappedMemory memory = MappedMemory::Create(bytes);
    const int descriptor = memory.Export();
    Say(importer.socket(), 'g', descriptor);
    close(descriptor);
    Hear(importer.socket());
  }
  // This process has released the memory; only the importer maps it.
  const size_t with_importer = FreeGpuMemory();
  importer.Kill();
  Figure("time from the importer's kill -9 until its memory is free",
         MillisecondsUntilFree(with_importer, bytes), "ms", absl::StrCat(bytes >> 20, " MiB"));
}

void ProbeExporterDeath() {
  Child exporter("exporter");
  int descriptor = -1;
  Hear(exporter.socket(), &descriptor);
  MappedMemory memory = MappedMemory::Import(descriptor, kSmall);
  memory.Map();
  exporter.Kill();
  Answer("the importer's mapping outlives its exporter", YesOrNo(memory.Holds('e')));
  // The same as for a daemon that died and whose descriptor systemd's descriptor store has.
  MappedMemory again = MappedMemory::Import(descriptor, kSmall);
  close(descriptor);
  again.Map();
  Answer("a descriptor in another process keeps the memory", YesOrNo(again.Holds('e')));
}

void ProbeLockedDown() {
  Child child("locked-down");
  const char word = Hear(child.socket());
  Answer("CUDA works where memory cannot be both written and executed",
         word == '?' ? "this kernel cannot test it" : YesOrNo(word == 'y'));
}

// Does the same as a daemon whose context is lost: resets the device while memory is mapped,
// releases everything, and imports the descriptor again.
void ProbeReset() {
  MappedMemory memory = MappedMemory::Create(kSmall);
  memory.Map();
  memory.Fill('r');
  const int descriptor = memory.Export();
  const absl::Status reset = ResetGpu(0);
  Answer("resetting a device with mappings in place", reset.ok() ? "done" : reset.ToString());
  Answer("unmapping, releasing and freeing what was mapped before the reset", memory.Abandon());
  UseFirstGpu();
  MappedMemory again = MappedMemory::Import(descriptor, kSmall);
  close(descriptor);
  again.Map();
  Answer("memory survives a reset of the context by its descriptor", YesOrNo(again.Holds('r')));
}

}  // namespace memtide::bench

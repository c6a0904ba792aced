// Probes what a process does to others when it faults, or is killed, while its kernels run.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "bench/gpu/child.h"
#include "bench/gpu/kernels.h"
#include "bench/gpu/mapped_memory.h"
#include "bench/gpu/probes.h"
#include "bench/gpu/report.h"
#include "bench/gpu/stream.h"

namespace memtide::bench {
namespace {

constexpr size_t kSmall = 2 << 20;

// Imports the memory of a descriptor that comes next.
MappedMemory HearMemory(int socket) {
  int descriptor = -1;
  Hear(socket, &descriptor);
  MappedMemory memory = MappedMemory::Import(descriptor, kSmall);
  close(descriptor);
  memory.Map();
  return memory;
}

void SayMemory(int socket, const MappedMemory& memory) {
  const int descriptor = memory.Export();
  Say(socket, 'd', descriptor);
  close(descriptor);
}

uint32_t FirstWord(const MappedMemory& memory, const Stream& stream) {
  uint32_t word = 0;
  OrDie(Driver().MemcpyDtoHAsync(&word, memory.data(), sizeof(word), stream.get()), "copying");
  OrDie(stream.Finish(), "copying");
  return word;
}

double ResidentMiB() {
  size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

}  // namespace

// Writes to memory of the parent until it is killed.
int PlayWriter(const std::string& unused, int socket) {
  const Kernels kernels;
  const MappedMemory memory = HearMemory(socket);
  const Stream stream;
  kernels.Count(stream.get(), memory.data(), std::chrono::milliseconds(Scaled(5000, 1000)));
  Say(socket, 'w');
  Hear(socket);
  return 0;
}

// Faults, and tries to go on.
int PlayFaulter(const std::string& unused, int socket) {
  const Kernels kernels;
  Say(socket, 'k');
  const MappedMemory shared = HearMemory(socket);
  MappedMemory nothing = MappedMemory::Create(kSmall);
  const Stream stream;
  kernels.Read(stream.get(), nothing.data(), kSmall, std::chrono::milliseconds(1));
  Answer("a kernel that reads what is not mapped", NameOf(stream.Finish()));
  const absl::Status reset = ResetGpu(0);
  CUdeviceptr memory = 0;
  const bool works = reset.ok() && UseGpu(0).ok() &&
                     Driver().MemAlloc(&memory, kSmall) == CUDA_SUCCESS &&
                     Driver().MemsetD8Async(memory, 1, kSmall, nullptr) == CUDA_SUCCESS &&
                     Driver().CtxSynchronize() == CUDA_SUCCESS;
  Answer("a reset after it brings the process back", works ? "yes" : "no: the process must end");
  Say(socket, 'f');
  // Everything of the broken context is left to the end of the process.
  _exit(0);
}

// Has a context, and nothing else.
int PlayIdler(const std::string& unused, int socket) {
  const Kernels kernels;
  Say(socket, 'i');
  SayNumber(socket, ResidentMiB());
  Hear(socket);
  return 0;
}

void ProbeFault() {
  const Kernels kernels;
  MappedMemory memory = MappedMemory::Create(kSmall);
  memory.Map();
  memory.Fill('p');
  const Stream stream;
  Child faulter("faulter");
  Hear(faulter.socket());
  // A kernel of this process runs while the other faults.
  MappedMemory read = MappedMemory::Create(kSmall);
  read.Map();
  kernels.Read(stream.get(), read.data(), kSmall, std::chrono::milliseconds(Scaled(1000, 50)));
  SayMemory(faulter.socket(), memory);
  Hear(faulter.socket());
  const CUresult error = stream.Finish();
  YesOrNo("a fault in one process leaves another's kernels alone", error == CUDA_SUCCESS);
  if (error != CUDA_SUCCESS) std::_Exit(0);
  YesOrNo("and the memory that the two share", memory.Holds('p'));
}

void ProbeQuiet() {
  UseFirstGpu();
  MappedMemory memory = MappedMemory::Create(kSmall);
  memory.Map();
  memory.Fill(0);
  const Stream stream;
  Child writer("writer");
  SayMemory(writer.socket(), memory);
  Hear(writer.socket());
  const Instant launched = Now();
  const uint32_t before = FirstWord(memory, stream);
  while (FirstWord(memory, stream) == before) {
    if (Now() - launched > std::chrono::seconds(10)) {
      Answer("another process's kernel writes to shared memory", "no");
      return;
    }
  }
  YesOrNo("another process's kernel writes to shared memory", true);
  const Instant start = Now();
  double hung_up = 0;
  std::thread watch([&] {
    char unused = 0;
    recv(writer.socket(), &unused, 1, 0);  // Returns when the socket hangs up.
    hung_up = MicrosecondsSince(start) / 1e3;
  });
  writer.Kill();
  const double ended = MicrosecondsSince(start) / 1e3;
  watch.join();
  double last_write = 0;
  uint32_t last = FirstWord(memory, stream);
  while (Now() - start < std::chrono::milliseconds(Scaled(2000, 50))) {
    const uint32_t word = FirstWord(memory, stream);
    if (word == last) continue;
    last = word;
    last_write = MicrosecondsSince(start) / 1e3;
  }
  Figure("time from kill -9 until its socket hangs up", hung_up, "ms");
  Figure("time from kill -9 until it is reaped", ended, "ms");
  Figure("time from the hang-up until its last write is seen", std::max(0.0, last_write - hung_up),
         "ms", "0: none came after it was reaped");
}

void ProbeContexts() {
  UseFirstGpu();
  const size_t before = FreeGpuMemory();
  Child idler("idler");
  Hear(idler.socket());
  const double resident = HearNumber(idler.socket());
  const size_t with = FreeGpuMemory();
  Figure("GPU memory of one more context",
         static_cast<double>(before - std::min(before, with)) / (1 << 20), "MiB");
  Figure("host memory of a process with a context", resident, "MiB");
}

}  // namespace memtide::bench

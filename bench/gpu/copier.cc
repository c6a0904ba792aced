#include "bench/gpu/copier.h"

#include "base/shared_memory.h"
#include "bench/gpu/mapped_memory.h"
#include "bench/gpu/probes.h"
#include "bench/gpu/report.h"
#include "bench/gpu/stream.h"

namespace memtide::bench {

Copier::Copier(const std::string& ways) : child_("copier", ways) { Hear(child_.socket()); }

void Copier::Start() {
  Say(child_.socket(), 's');
  Hear(child_.socket());
}

double Copier::Stop() {
  Say(child_.socket(), 'e');
  return HearNumber(child_.socket());
}

int PlayCopier(const std::string& ways, int socket) {
  const bool copies_in = ways != "out", copies_out = ways != "in";
  const size_t size = size_t{64} << Scaled(20, 14);
  UseFirstGpu();
  absl::StatusOr<SharedMemory> host = SharedMemory::Create("gpu-probe", Bytes(2 * size));
  OrDie(host.status());
  OrDie(Driver().MemHostRegister(host->data(), 2 * size, CU_MEMHOSTREGISTER_PORTABLE),
        "cuMemHostRegister");
  MappedMemory memory = MappedMemory::Create(std::max<size_t>(2 * size, 2 << 20));
  memory.Map();
  const Stream in, out;
  Say(socket, 'r');
  for (;;) {
    Hear(socket);
    Say(socket, 'b');
    const Instant start = Now();
    double moved = 0;
    do {
      if (copies_in) {
        OrDie(Driver().MemcpyHtoDAsync(memory.data(), host->data(), size, in.get()), "copying");
      }
      if (copies_out) {
        OrDie(Driver().MemcpyDtoHAsync(host->data() + size, memory.data() + size, size, out.get()),
              "copying");
      }
      OrDie(in.Finish(), "copying");
      OrDie(out.Finish(), "copying");
      moved += (copies_in + copies_out) * static_cast<double>(size);
    } while (!HasHeard(socket));
    const double speed = moved / MicrosecondsSince(start) / 1e3;
    Hear(socket);
    SayNumber(socket, speed);
  }
}

}  // namespace memtide::bench

#include "bench/gpu/copier.h"

#include <string>

#include "base/shared_memory.h"
#include "bench/gpu/mapped_memory.h"
#include "bench/gpu/probes.h"
#include "bench/gpu/report.h"
#include "bench/gpu/stream.h"

namespace memtide::bench {

Copier::Copier(int piece_mib) : child_("copier", std::to_string(piece_mib)) {
  Hear(child_.socket());
}

void Copier::Start() {
  Say(child_.socket(), 's');
  Hear(child_.socket());
}

double Copier::Stop() {
  Say(child_.socket(), 'e');
  return HearNumber(child_.socket());
}

int PlayCopier(const std::string& piece_mib, int socket) {
  const size_t size = size_t{64} << Scaled(20, 14);
  const size_t piece = std::stoul(piece_mib) << Scaled(20, 14);
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
      for (size_t at = 0; at < size; at += piece) {
        OrDie(Driver().MemcpyHtoDAsync(memory.data() + at, host->data() + at, piece, in.get()),
              "copying");
        OrDie(Driver().MemcpyDtoHAsync(host->data() + size + at, memory.data() + size + at, piece,
                                       out.get()),
              "copying");
      }
      OrDie(in.Finish(), "copying");
      OrDie(out.Finish(), "copying");
      moved += 2 * static_cast<double>(size);
    } while (!HasHeard(socket));
    const double speed = moved / MicrosecondsSince(start) / 1e3;
    Hear(socket);
    SayNumber(socket, speed);
  }
}

}  // namespace memtide::bench

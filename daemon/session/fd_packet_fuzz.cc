// Any packet that a client can send: a hello that is safe to log, or a refusal that fits a packet.
#include <cstddef>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "base/check.h"
#include "bazel/message_mutator.h"
#include "daemon/session/fd_packet.h"
#include "memtide/v1/session.pb.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  memtide::v1::FdHello hello;
  return memtide::MutateMessage(&hello, data, size, most, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto hello = memtide::DecodeHello({reinterpret_cast<const char*>(data), size});
  if (!hello.ok()) {
    MEMTIDE_CHECK(memtide::EncodeRefused(hello.status()).size() <= memtide::kMaxPacketBytes);
    return 0;
  }
  MEMTIDE_CHECK(size <= memtide::kMaxPacketBytes);
  MEMTIDE_CHECK(hello->program.size() <= memtide::kMaxProgramBytes);
  for (const char c : hello->program) {
    MEMTIDE_CHECK(absl::ascii_isprint(static_cast<unsigned char>(c)));
  }
  return 0;
}

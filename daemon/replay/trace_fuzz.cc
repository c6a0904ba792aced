// A trace file from anywhere: it is refused, or a sequence that keeps what access_sequence.h says.
#include <google/protobuf/io/gzip_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "bazel/message_mutator.h"
#include "daemon/replay/access_sequence.h"
#include "daemon/replay/trace_file.h"

namespace memtide {
namespace {

// The first byte of an input says whether the rest is a trace, or already compressed.
bool IsMessage(uint8_t kind) { return kind % 8 != 7; }

std::string Compressed(const std::string& bytes) {
  std::string compressed;
  google::protobuf::io::StringOutputStream file(&compressed);
  google::protobuf::io::GzipOutputStream packed(&file);
  void* at;
  int room;
  for (size_t done = 0; done < bytes.size() && packed.Next(&at, &room);) {
    const size_t some = std::min(bytes.size() - done, static_cast<size_t>(room));
    std::copy_n(bytes.data() + done, some, static_cast<char*>(at));
    packed.BackUp(room - static_cast<int>(some));
    done += some;
  }
  packed.Close();
  return compressed;
}

void Check(const AccessSequence& sequence) {
  MEMTIDE_CHECK(!sequence.iteration_ends.empty());
  size_t last = 0;
  for (const size_t end : sequence.iteration_ends) {
    MEMTIDE_CHECK(end >= last && end <= sequence.moments.size());
    last = end;
  }
  for (const PlayedMoment& moment : sequence.moments) {
    MEMTIDE_CHECK(moment.compute >= Duration(0));
    for (const ChunkEvent& event : moment.events) {
      MEMTIDE_CHECK(event.chunk < sequence.chunks.size());
    }
  }
  MEMTIDE_CHECK(MostChunks(sequence) <= sequence.chunks.size());
}

}  // namespace
}  // namespace memtide

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  if (size == 0) data[size++] = static_cast<uint8_t>(seed);
  if (!memtide::IsMessage(data[0])) return 1 + LLVMFuzzerMutate(data + 1, size - 1, most - 1);
  memtide::v1::Trace trace;
  return 1 + memtide::MutateMessage(&trace, data + 1, size - 1, most - 1, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace memtide;  // NOLINT(google-build-using-namespace): one function.
  if (size == 0) return 0;
  std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  if (IsMessage(data[0])) bytes = Compressed(bytes);
  static const int file = memfd_create("trace", MFD_CLOEXEC);
  MEMTIDE_CHECK(ftruncate(file, 0) == 0);
  MEMTIDE_CHECK(pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  const auto trace = LoadTrace("/proc/self/fd/" + std::to_string(file));
  if (!trace.ok()) {
    MEMTIDE_CHECK(trace.status().code() == absl::StatusCode::kInvalidArgument) << trace.status();
    return 0;
  }
  const auto sequence = ToAccessSequence(*trace);
  if (sequence.ok()) Check(*sequence);
  return 0;
}

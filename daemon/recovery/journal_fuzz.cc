// A journal that any process may have left: it is refused, or read as records that an engine could
// have made, which then survive being appended and read again.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/check.h"
#include "bazel/message_mutator.h"
#include "daemon/recovery/journal.h"
#include "journal.pb.h"

namespace memtide {
namespace {

// Where they are in the file.
constexpr off_t kVersion = 8, kCounts = 16, kEntries = 4096;
// The last one whose entries have no sums: any bytes can be an entry.
constexpr uint64_t kVersionWithoutSums = 3;

// The first byte of an input says what the rest is: one entry, or all after the header.
bool IsOneEntry(uint8_t kind) { return kind % 4 != 3; }

void WriteAt(int fd, off_t at, const std::string& bytes) {
  MEMTIDE_CHECK(pwrite(fd, bytes.data(), bytes.size(), at) == static_cast<ssize_t>(bytes.size()));
}

template <typename Number>
std::string BytesOf(Number number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof(number));
}

void CheckRead(int fd) {
  const auto opened = Journal::Open(OwnedFd(dup(fd)));
  if (!opened.ok()) {
    MEMTIDE_CHECK(opened.status().code() == absl::StatusCode::kDataLoss ||
                  opened.status().code() == absl::StatusCode::kFailedPrecondition)
        << opened.status();
    return;
  }
  const Restore before = (*opened)->Contents();
  Record record;
  record.jobs = before.job_records;
  record.chunks = before.chunk_records;
  const auto copy = Journal::Create();
  MEMTIDE_CHECK(copy.ok() && (*copy)->Append(record).ok());
  const auto again = Journal::Open(OwnedFd(dup((*copy)->fd())));
  MEMTIDE_CHECK(again.ok()) << again.status();
  const Restore after = (*again)->Contents();
  MEMTIDE_CHECK(after.job_records.size() == before.job_records.size());
  MEMTIDE_CHECK(after.chunk_records.size() == before.chunk_records.size());
}

}  // namespace
}  // namespace memtide

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  if (size == 0) data[size++] = static_cast<uint8_t>(seed);
  if (!memtide::IsOneEntry(data[0])) return 1 + LLVMFuzzerMutate(data + 1, size - 1, most - 1);
  memtide::journal::Entry entry;
  return 1 + memtide::MutateMessage(&entry, data + 1, size - 1, most - 1, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace memtide;  // NOLINT(google-build-using-namespace): one function.
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data + 1), size - 1);
  const auto journal = Journal::Create();
  MEMTIDE_CHECK(journal.ok()) << journal.status();
  const int fd = (*journal)->fd();
  if (data[0] % 4 != 1) WriteAt(fd, kVersion, BytesOf(kVersionWithoutSums));
  if (IsOneEntry(data[0])) {
    WriteAt(fd, kEntries, BytesOf(static_cast<uint32_t>(rest.size())) + rest);
    WriteAt(fd, kCounts, BytesOf(uint64_t{rest.size() + sizeof(uint32_t)}));
  } else {
    WriteAt(fd, kEntries, rest);
    // The last bytes are those of the header, or the count is right.
    WriteAt(fd, kCounts, BytesOf(uint64_t{rest.size()}));
    if (data[0] % 8 == 7 && rest.size() >= 24) WriteAt(fd, 0, rest.substr(rest.size() - 24));
  }
  CheckRead(fd);
  return 0;
}

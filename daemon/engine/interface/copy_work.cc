#include "daemon/engine/interface/copy_work.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

// Number and size of a work's chunks.
struct Chunks {
  uint32_t reads = 0, count = 0;
  uint64_t bytes = 0;  // The size of each.
};

enum class Role { kRead, kWritten };

absl::Status CheckSpan(absl::string_view name, const CopyWork::Place& place, uint64_t bytes,
                       Role role, const Chunks& chunks) {
  // Work numbers the chunks that it reads before those that it writes.
  const bool written = place.chunk >= chunks.reads;
  if (place.chunk >= chunks.count || written != (role == Role::kWritten)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": chunk number ", place.chunk, " is not one of the ",
                     role == Role::kRead ? "read" : "written", " ones (", chunks.reads, " of ",
                     chunks.count, " are read, the others are written)"));
  }
  // The sum of the two could overflow.
  if (place.offset > chunks.bytes || bytes > chunks.bytes - place.offset) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", bytes, " bytes from ", place.offset,
                                                   " do not lie in a chunk of ", chunks.bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const CopyWork& work, uint32_t reads, uint32_t chunks, uint64_t chunk_bytes) {
  const Chunks known = {reads, chunks, chunk_bytes};
  std::vector<uint64_t> written(chunks);  // Bytes, by chunk.
  for (const CopyWork::Copy& copy : work.copies) {
    MEMTIDE_RETURN_IF_ERROR(CheckSpan("from", copy.from, copy.bytes, Role::kRead, known));
    MEMTIDE_RETURN_IF_ERROR(CheckSpan("to", copy.to, copy.bytes, Role::kWritten, known));
    // At most twice the size of a chunk, which cannot overflow.
    uint64_t& bytes = written[copy.to.chunk];
    bytes += copy.bytes;
    if (bytes <= chunk_bytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("chunk number ", copy.to.chunk, ": ", bytes, " bytes or more are written to ",
                     "it, which holds ", chunk_bytes, "; write each byte once"));
  }
  return absl::OkStatus();
}

uint64_t BytesWritten(const CopyWork& work) {
  uint64_t bytes = 0;
  for (const CopyWork::Copy& copy : work.copies) bytes += copy.bytes;
  return bytes;
}

// No copy reads what another one writes, because CheckSpan() keeps read and written chunks apart.
bool RunSome(const CopyWork& work, absl::Span<char* const> chunks, uint64_t most_bytes,
             CopyProgress* progress) {
  uint64_t left = most_bytes;
  while (left > 0 && progress->copies < work.copies.size()) {
    const CopyWork::Copy& copy = work.copies[progress->copies];
    const uint64_t bytes = std::min(left, copy.bytes - progress->begun);
    std::memcpy(chunks[copy.to.chunk] + copy.to.offset + progress->begun,
                chunks[copy.from.chunk] + copy.from.offset + progress->begun, bytes);
    left -= bytes;
    progress->begun += bytes;
    if (progress->begun < copy.bytes) continue;
    ++progress->copies;
    progress->begun = 0;
  }
  return progress->copies == work.copies.size();
}

void RunAll(const CopyWork& work, absl::Span<char* const> chunks) {
  CopyProgress progress;
  while (!RunSome(work, chunks, std::numeric_limits<uint64_t>::max(), &progress)) {
  }
}

}  // namespace memtide

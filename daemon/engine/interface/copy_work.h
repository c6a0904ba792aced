// CopyWork: what a step part copies, as data: which bytes of which chunks to where.
//
// The engine makes or checks a CopyWork, and a step thread of the Mover runs it. Chunks are indices
// of a list that travels with the work. The first `reads` of them are only read and the others only
// written, so that nothing changes in place: running a CopyWork twice gives the same bits.
//
// Plain values; the functions are pure and run in the calling thread.
#ifndef MEMTIDE_DAEMON_ENGINE_INTERFACE_COPY_WORK_H_
#define MEMTIDE_DAEMON_ENGINE_INTERFACE_COPY_WORK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace memtide {

struct CopyWork {
  // A byte of a chunk.
  struct Place {
    uint32_t chunk = 0;  // Index in the list.
    uint64_t offset = 0;
  };
  // Bytes that are copied unchanged.
  struct Copy {
    Place from, to;
    uint64_t bytes = 0;
  };

  std::vector<Copy> copies;
};

// INVALID_ARGUMENT, naming what is wrong and what is allowed: spans outside of a chunk of
// `chunk_bytes`, a chunk read that is to be written or the other way round, more bytes written to a
// chunk than it holds. So the chunks that a valid work writes bound how long it runs.
absl::Status Validate(const CopyWork& work, uint32_t reads, uint32_t chunks, uint64_t chunk_bytes);

// Runs the work; `chunks` are the addresses of the list's chunks. REQUIRES: the work is valid.
void RunAll(const CopyWork& work, absl::Span<char* const> chunks);

// How much of a work has been run.
struct CopyProgress {
  size_t copies = 0;
  uint64_t begun = 0;  // Bytes of the next copy.
};
// Runs the work on from there until `most_bytes` more have been written. True: the work is done.
// REQUIRES: as RunAll().
bool RunSome(const CopyWork& work, absl::Span<char* const> chunks, uint64_t most_bytes,
             CopyProgress* progress);
// The bytes that the work writes. REQUIRES: the work is valid.
uint64_t BytesWritten(const CopyWork& work);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_INTERFACE_COPY_WORK_H_

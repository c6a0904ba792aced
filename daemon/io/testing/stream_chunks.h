// StreamChunks: whole chunks through a Disk, several in flight, for benchmarks.
#ifndef MEMTIDE_DAEMON_IO_TESTING_STREAM_CHUNKS_H_
#define MEMTIDE_DAEMON_IO_TESTING_STREAM_CHUNKS_H_

#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "base/shared_memory.h"
#include "daemon/io/disk.h"

namespace memtide {

inline constexpr Bytes kStreamedChunk = MiB(64);

// Moves `size` bytes of the store, with as many chunks in flight as the memory has.
inline void StreamChunks(Disk* disk, StoreId store, Bytes size, const SharedMemory& memory,
                         DiskTransfer::Direction direction) {
  Mutex mutex;
  CondVar changed;
  std::vector<char*> idle;
  for (Bytes at; at < memory.size(); at += kStreamedChunk) {
    idle.push_back(memory.data() + at.count());
  }
  const size_t all = idle.size();
  for (Bytes offset; offset < size; offset += kStreamedChunk) {
    DiskTransfer transfer;
    transfer.direction = direction;
    transfer.store = store;
    transfer.offset = offset;
    transfer.size = kStreamedChunk;
    {
      MutexLock lock(&mutex);
      while (idle.empty()) changed.Wait(&mutex);
      transfer.memory = idle.back();
      idle.pop_back();
    }
    disk->Start(transfer, [&, memory = transfer.memory](absl::Status status) {
      MEMTIDE_CHECK(status.ok()) << status;
      MutexLock lock(&mutex);
      idle.push_back(memory);
      changed.Signal();
    });
  }
  MutexLock lock(&mutex);
  while (idle.size() < all) changed.Wait(&mutex);
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_TESTING_STREAM_CHUNKS_H_

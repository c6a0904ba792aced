// RegisteredBuffers: memory that the kernel pins once for an io_uring, instead of at each transfer.
//
// A kernel table of fixed size whose entries follow the regions that exist.
//
// Thread safety: for the ring's thread only, except Describe.
#ifndef MEMTIDE_DAEMON_IO_REGISTERED_BUFFERS_H_
#define MEMTIDE_DAEMON_IO_REGISTERED_BUFFERS_H_

#include <liburing.h>

#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/bytes.h"
#include "base/mutex.h"

namespace memtide {

class RegisteredBuffers {
 public:
  // Makes the table. If the kernel has no such table, it refuses every Add.
  void Init(io_uring* ring);

  void Add(char* memory, Bytes size);
  // Ignores memory that was not added, or that the kernel refused.
  void Remove(char* memory);
  // The index of the buffer that holds all of the range, or -1.
  int Find(const char* memory, Bytes size) const;

  // "registered buffers", or why not. Any thread.
  std::string Describe() const;

 private:
  struct Buffer {
    Bytes size;
    int index = 0;
    char* added_as = nullptr;  // The `memory` of the Add that this buffer is part of.
  };

  // Sets or, with a null address, clears one entry of the kernel's table.
  int Update(int index, char* memory, Bytes size);
  void Refused(int error, Bytes size);

  io_uring* ring_ = nullptr;
  std::map<const char*, Buffer> buffers_;  // By address.
  std::vector<int> free_;                  // Free entries of the kernel's table.
  mutable Mutex mutex_;
  std::string refusal_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_REGISTERED_BUFFERS_H_

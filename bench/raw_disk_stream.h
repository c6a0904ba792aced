// RawDiskStream is the limit of the SSD pool: a bare io_uring loop over one file.
//
// It moves a block of memory to a file and back in pieces, a few in flight, with O_DIRECT, a
// registered buffer and a registered file, from one thread: the least that a program must do to
// move these bytes. A short request, which a healthy disk never has, ends the program.
#ifndef MEMTIDE_BENCH_RAW_DISK_STREAM_H_
#define MEMTIDE_BENCH_RAW_DISK_STREAM_H_

#include <liburing.h>

#include <string>

#include "base/bytes.h"
#include "base/clock.h"

namespace memtide {

struct RawDiskStreamOptions {
  std::string directory;  // Where the file, which has no name, is created.
  char* memory = nullptr;
  Bytes size;  // The size of the memory and of the file. A multiple of `piece`.
  // The same values as the daemon's IoSchedulerOptions (daemon/io/io_scheduler.h).
  Bytes piece = MiB(8);
  unsigned depth = 4;
};

class RawDiskStream {
 public:
  // Writes the whole file, because blocks that were only reserved are read without the disk.
  explicit RawDiskStream(const RawDiskStreamOptions& options);
  ~RawDiskStream();
  RawDiskStream(const RawDiskStream&) = delete;
  RawDiskStream& operator=(const RawDiskStream&) = delete;

  // Move the whole file, and return how long it took.
  Duration Write();
  Duration Read();

 private:
  enum class Direction { kRead, kWrite };
  void Submit(Direction direction, Bytes offset);
  Duration Run(Direction direction);

  const RawDiskStreamOptions options_;
  int file_ = -1;
  io_uring ring_;
};

}  // namespace memtide

#endif  // MEMTIDE_BENCH_RAW_DISK_STREAM_H_

// Streamer: the limit of the SSD pool: a bare io_uring loop over one file.
//
// Moves a block of memory to a file and back in pieces, a few in flight, with O_DIRECT, a
// registered buffer and a registered file, from one thread: the least that a program must do to
// move these bytes. No request is ever short on a healthy disk; one that is ends the program.
#ifndef MEMTIDE_BENCH_STREAMER_H_
#define MEMTIDE_BENCH_STREAMER_H_

#include <liburing.h>

#include <string>

#include "base/bytes.h"
#include "base/clock.h"

namespace memtide {

struct StreamerOptions {
  std::string directory;  // The file is made here, without a name.
  char* memory = nullptr;
  Bytes size;  // Of the memory and of the file. A multiple of `piece`.
  // The daemon's: see LaneOptions in daemon/io/lanes.h.
  Bytes piece = MiB(8);
  unsigned depth = 4;
};

class Streamer {
 public:
  // Writes the whole file for real: a block that was only reserved is read without the disk.
  explicit Streamer(const StreamerOptions& options);
  ~Streamer();
  Streamer(const Streamer&) = delete;
  Streamer& operator=(const Streamer&) = delete;

  // How long it took to move all of it.
  Duration Write();
  Duration Read();

 private:
  enum class Direction { kRead, kWrite };
  void Submit(Direction direction, Bytes offset);
  Duration Stream(Direction direction);

  const StreamerOptions options_;
  int file_ = -1;
  io_uring ring_;
};

}  // namespace memtide

#endif  // MEMTIDE_BENCH_STREAMER_H_

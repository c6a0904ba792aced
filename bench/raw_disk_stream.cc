#include "bench/raw_disk_stream.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace memtide {

RawDiskStream::RawDiskStream(const RawDiskStreamOptions& options) : options_(options) {
  MEMTIDE_CHECK(options.size.IsMultipleOf(options.piece)) << options.size;
  file_ = open(options.directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  MEMTIDE_CHECK(file_ >= 0) << options.directory << ": " << strerror(errno);
  const int reserved = posix_fallocate(file_, 0, static_cast<off_t>(options.size.count()));
  MEMTIDE_CHECK(reserved == 0) << options.directory << ": " << strerror(reserved);
  io_uring_params params = {};
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  const int opened = io_uring_queue_init_params(options.depth, &ring_, &params);
  MEMTIDE_CHECK(opened == 0) << "io_uring: " << strerror(-opened);
  const iovec buffer = {options.memory, options.size.count()};
  const int buffers = io_uring_register_buffers(&ring_, &buffer, 1);
  MEMTIDE_CHECK(buffers == 0) << "registering the buffer: " << strerror(-buffers);
  const int files = io_uring_register_files(&ring_, &file_, 1);
  MEMTIDE_CHECK(files == 0) << "registering the file: " << strerror(-files);
  Write();
}

RawDiskStream::~RawDiskStream() {
  io_uring_queue_exit(&ring_);
  close(file_);
}

Duration RawDiskStream::Write() { return Run(Direction::kWrite); }
Duration RawDiskStream::Read() { return Run(Direction::kRead); }

void RawDiskStream::Submit(Direction direction, Bytes offset) {
  io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
  MEMTIDE_CHECK(entry != nullptr);
  char* const memory = options_.memory + offset.count();
  const unsigned size = static_cast<unsigned>(options_.piece.count());
  constexpr int kRegisteredFile = 0, kRegisteredBuffer = 0;
  if (direction == Direction::kRead) {
    io_uring_prep_read_fixed(entry, kRegisteredFile, memory, size, offset.count(),
                             kRegisteredBuffer);
  } else {
    io_uring_prep_write_fixed(entry, kRegisteredFile, memory, size, offset.count(),
                              kRegisteredBuffer);
  }
  io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
}

Duration RawDiskStream::Run(Direction direction) {
  const Instant begin = Now();
  Bytes next;
  unsigned in_flight = 0;
  while (next < options_.size || in_flight > 0) {
    for (; next < options_.size && in_flight < options_.depth; ++in_flight) {
      Submit(direction, next);
      next += options_.piece;
    }
    const int submitted = io_uring_submit_and_wait(&ring_, 1);
    MEMTIDE_CHECK(submitted >= 0) << strerror(-submitted);
    io_uring_cqe* completion = nullptr;
    while (io_uring_peek_cqe(&ring_, &completion) == 0) {
      MEMTIDE_CHECK(completion->res == static_cast<int>(options_.piece.count()))
          << completion->res << " of " << options_.piece;
      io_uring_cqe_seen(&ring_, completion);
      --in_flight;
    }
  }
  return Now() - begin;
}

}  // namespace memtide

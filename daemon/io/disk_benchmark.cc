// Holds UringDisk to a bare io_uring streamer of the same shape: throughput at least 0.95 of its,
// and at most 15 ms of CPU time per GB.
//
//   bazel run -c opt //daemon/io:disk_benchmark -- DIRECTORY [ROUNDS]
//
// A shared machine's disk drifts by a factor of two within minutes, so the two are run in turn and
// compared pair by pair; the median of the ratios counts. Leaves DIRECTORY's marker behind.
#include <fcntl.h>
#include <liburing.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/shared_memory.h"
#include "daemon/io/open_disk.h"
#include "daemon/io/testing/stream_chunks.h"

namespace memtide {
namespace {

constexpr Bytes kFile = GiB(1);
constexpr int kBuffers = 4;  // Chunks in flight.
constexpr StoreId kStore(1);
using Direction = DiskTransfer::Direction;

struct Cost {
  double gigabytes_per_second = 0;
  double cpu_milliseconds_per_gigabyte = 0;
};

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
         (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

Cost Measure(const std::function<void()>& stream) {
  const double cpu = CpuSeconds();
  const Instant start = Now();
  stream();
  const double seconds = std::chrono::duration<double>(Now() - start).count();
  const double gigabytes = kFile.count() / 1e9;
  return {gigabytes / seconds, (CpuSeconds() - cpu) * 1e3 / gigabytes};
}

// Nothing but the ring: one file, two registered requests of 4 MiB in flight.
class BareStreamer {
 public:
  BareStreamer(const std::string& directory, const SharedMemory& memory) : memory_(memory) {
    file_ = open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    MEMTIDE_CHECK(file_ >= 0 && fallocate(file_, 0, 0, kFile.count()) == 0);
    MEMTIDE_CHECK(io_uring_queue_init(
                      8, &ring_, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) == 0);
    const iovec buffer{memory.data(), memory.size().count()};
    registered_ = io_uring_register_buffers(&ring_, &buffer, 1) == 0;
  }
  ~BareStreamer() {
    io_uring_queue_exit(&ring_);
    close(file_);
  }

  void Stream(Direction direction) {
    Bytes next, done;
    while (done < kFile) {
      for (; next < kFile && next - done < MiB(8); next += MiB(4)) Submit(direction, next);
      MEMTIDE_CHECK(io_uring_submit_and_wait(&ring_, 1) >= 0);
      unsigned head, count = 0;
      io_uring_cqe* completion;
      io_uring_for_each_cqe(&ring_, head, completion) {
        MEMTIDE_CHECK(completion->res == static_cast<int>(MiB(4).count())) << completion->res;
        done += MiB(4);
        ++count;
      }
      io_uring_cq_advance(&ring_, count);
    }
  }

 private:
  void Submit(Direction direction, Bytes offset) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    char* const memory = memory_.data() + offset.count() % memory_.size().count();
    const unsigned size = MiB(4).count();
    const bool read = direction == Direction::kRead;
    if (registered_ && read) {
      io_uring_prep_read_fixed(entry, file_, memory, size, offset.count(), 0);
    } else if (registered_) {
      io_uring_prep_write_fixed(entry, file_, memory, size, offset.count(), 0);
    } else if (read) {
      io_uring_prep_read(entry, file_, memory, size, offset.count());
    } else {
      io_uring_prep_write(entry, file_, memory, size, offset.count());
    }
  }

  const SharedMemory& memory_;
  int file_;
  bool registered_;
  io_uring ring_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Series {
  std::vector<double> speed, cpu;
  void Add(const Cost& cost) {
    speed.push_back(cost.gigabytes_per_second);
    cpu.push_back(cost.cpu_milliseconds_per_gigabyte);
  }
};

void Compare(const char* name, BareStreamer* bare, Disk* disk, const SharedMemory& memory,
             Direction direction, int rounds) {
  Series bare_series, disk_series;
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    const Cost bare_cost = Measure([&] { bare->Stream(direction); });
    const Cost disk_cost = Measure([&] { StreamChunks(disk, kStore, kFile, memory, direction); });
    bare_series.Add(bare_cost);
    disk_series.Add(disk_cost);
    ratios.push_back(disk_cost.gigabytes_per_second / bare_cost.gigabytes_per_second);
  }
  std::printf(
      "%-5s  bare %.2f GB/s, %.1f CPU-ms/GB   disk %.2f GB/s, %.1f CPU-ms/GB   ratio %.2f\n", name,
      Median(bare_series.speed), Median(bare_series.cpu), Median(disk_series.speed),
      Median(disk_series.cpu), Median(ratios));
}

int Run(const std::string& directory, int rounds) {
  absl::StatusOr<SharedMemory> memory =
      SharedMemory::Create("benchmark", kStreamedChunk * kBuffers);
  MEMTIDE_CHECK(memory.ok()) << memory.status();
  DiskOptions options;
  options.directories = {directory};
  options.engine = DiskEngine::kUring;
  absl::StatusOr<std::unique_ptr<Disk>> disk = OpenDisk(options);
  MEMTIDE_CHECK(disk.ok()) << disk.status();
  MEMTIDE_CHECK((*disk)->MakeStore(kStore, kFile).ok());
  (*disk)->AddBuffer(memory->data(), memory->size());
  BareStreamer bare(directory, *memory);
  // Files that were never written read back without the disk.
  bare.Stream(Direction::kWrite);
  StreamChunks(disk->get(), kStore, kFile, *memory, Direction::kWrite);
  std::printf("%s\n", (*disk)->Describe().c_str());
  Compare("write", &bare, disk->get(), *memory, Direction::kWrite, rounds);
  Compare("read", &bare, disk->get(), *memory, Direction::kRead, rounds);
  (*disk)->RemoveBuffer(memory->data());
  return 0;
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s DIRECTORY [ROUNDS]\n", argv[0]);
    return 2;
  }
  int rounds = 7;
  if (argc > 2 && (!absl::SimpleAtoi(argv[2], &rounds) || rounds < 1)) {
    std::fprintf(stderr, "\"%s\" is not a number of rounds\n", argv[2]);
    return 2;
  }
  return memtide::Run(argv[1], rounds);
}

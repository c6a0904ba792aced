// Measures the SSD pool through the whole daemon, against an io_uring loop in the same directory.
//
//   ssd_bench --socket_dir=DIR --daemon=PID --ssd_dir=DIR --chunk_mib=64 [--quick]
//
// Writing times memtide_evict of dirty chunks, two calls at a time. Reading times their
// memtide_acquire, a few at a time. Both sides move the same number of random bytes from and to
// shared memory, in the same round.
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/shared_memory.h"
#include "bench/client_session.h"
#include "bench/harness.h"
#include "bench/raw_disk_stream.h"

ABSL_FLAG(std::string, socket_dir, "", "where the daemon's sockets are");
ABSL_FLAG(int32_t, daemon, 0, "its process");
ABSL_FLAG(std::string, ssd_dir, "", "the directory of its SSD pool, for the limit's file too");
ABSL_FLAG(uint32_t, chunk_mib, 64, "size of a chunk");
ABSL_FLAG(bool, quick, false, "fewer rounds");

namespace memtide {
namespace {

constexpr Bytes kMost = MiB(768);   // A measurement moves at most this much.
constexpr Bytes kAhead = MiB(128);  // A call moves this much.

void FillWithRandomBytes(char* memory, Bytes size) {
  // A disk that compresses would store zeros, or a repeated pattern, faster than any real chunk.
  std::mt19937_64 random(size.count());
  auto* const words = reinterpret_cast<uint64_t*>(memory);
  std::generate_n(words, size.count() / sizeof(uint64_t), std::ref(random));
}

class Product {
 public:
  Product(ClientSession* session, Bytes chunk, Bytes total)
      : session_(session), chunk_(chunk), places_(session->Allocate(total / chunk)) {
    session_->Acquire(places_, MEMTIDE_WRITE);
    for (const uint32_t place : places_) FillWithRandomBytes(session_->At(place), chunk);
    session_->Release(places_);
  }

  // REQUIRES: the chunks are in host memory.
  Duration Write() {
    session_->Acquire(places_, MEMTIDE_WRITE);  // From here on, the copies on SSD are stale.
    session_->Release(places_);
    return TimeOf([&] {
      std::thread other([&] { EvictEveryOther(1); });
      EvictEveryOther(0);
      other.join();
    });
  }
  // REQUIRES: the chunks are on SSD.
  Duration Read() {
    return TimeOf([&] {
      for (size_t begin = 0; begin < places_.size(); begin += BatchSize()) {
        session_->Acquire(Batch(begin), MEMTIDE_READ);
        session_->Release(Batch(begin));
      }
    });
  }

 private:
  // Two threads call this, so that one unmaps chunks while those of the other are written.
  void EvictEveryOther(size_t first) {
    for (size_t batch = first; batch * BatchSize() < places_.size(); batch += 2) {
      session_->Evict(Batch(batch * BatchSize()));
    }
  }

  size_t BatchSize() const { return std::max<size_t>(1, kAhead / chunk_); }
  Places Batch(size_t begin) const {
    begin = std::min(begin, places_.size());
    const size_t end = std::min(begin + BatchSize(), places_.size());
    return Places(places_.begin() + begin, places_.begin() + end);
  }

  ClientSession* const session_;
  const Bytes chunk_;
  const Places places_;
};

// Measures one side that moves `total` bytes one or more times: its speed, and the CPU time of its
// process.
class Meter {
 public:
  Meter(pid_t process, Bytes total) : process_(process), total_(total) {}

  // In GB/s. `move` returns how long it took.
  double Speed(const std::function<Duration()>& move) {
    const Duration before = CpuTime(process_);
    const Duration took = move();
    cpu_ += CpuTime(process_) - before;
    moved_ += total_;
    return GigabytesPerSecond(total_, took);
  }
  // In ms for each GB, over all moved bytes.
  double CpuPerGigabyte() const { return Seconds(cpu_) * 1e3 / (moved_.count() / 1e9); }

 private:
  const pid_t process_;
  const Bytes total_;
  Duration cpu_{0};
  Bytes moved_;
};

void Measure() {
  const Bytes chunk = MiB(absl::GetFlag(FLAGS_chunk_mib));
  const pid_t daemon = absl::GetFlag(FLAGS_daemon);
  ClientSession session(absl::GetFlag(FLAGS_socket_dir), chunk);
  const Bytes total = std::min(chunk * session.lease_budget(), kMost);
  Product product(&session, chunk, total);

  const SharedMemory memory = OrDie(SharedMemory::Create("bench-ssd", total));
  FillWithRandomBytes(memory.data(), total);
  RawDiskStreamOptions stream;
  stream.directory = absl::GetFlag(FLAGS_ssd_dir);
  stream.memory = memory.data();
  stream.size = total;
  RawDiskStream limit(stream);

  const std::string suffix = absl::StrCat(".", chunk / MiB(1));
  RoundsOptions options;
  options.daemon = daemon;
  options.at_most = std::chrono::seconds(absl::GetFlag(FLAGS_quick) ? 10 : 40);
  Rounds rounds(options);
  while (rounds.Next()) {
    Meter of_limit(getpid(), total), of_product(daemon, total);
    rounds.Compare(
        "ssd.write" + suffix, [&] { return of_limit.Speed([&] { return limit.Write(); }); },
        [&] { return of_product.Speed([&] { return product.Write(); }); });
    rounds.Compare(
        "ssd.read" + suffix, [&] { return of_limit.Speed([&] { return limit.Read(); }); },
        [&] { return of_product.Speed([&] { return product.Read(); }); });
    rounds.Add("ssd.cpu" + suffix, of_limit.CpuPerGigabyte(), of_product.CpuPerGigabyte());
  }
  rounds.Print();
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  memtide::PreferProcess(getpid());
  memtide::Measure();
}

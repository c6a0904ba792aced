#include "daemon/io/drive_speed.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/shared_memory.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

// How long a drive is written, and read.
constexpr Duration kStream = std::chrono::milliseconds(400);
constexpr uint64_t kMostStripes = 64;
constexpr uint64_t kStoreStripes = 8;
// More than a lane of the IoScheduler has in flight, so that the drive never waits for this thread.
constexpr uint64_t kMostAtOnce = 8;

// Transfers of whole stripes over one drive's store, from one thread.
class Stream {
 public:
  Stream(Disk* disk, StoreId store, char* memory) : disk_(disk), memory_(memory) {
    transfer_.store = store;
  }

  // Moves stripes in one direction. Returns seconds per byte.
  absl::StatusOr<double> Run(DiskTransfer::Direction direction) {
    transfer_.direction = direction;
    const bool write = direction == DiskTransfer::Direction::kWrite;
    begin_ = Now();
    uint64_t started = 0;
    std::vector<Instant> ends;
    while (true) {
      while (HasTimeFor(started, ends)) {
        // A stripe that was never written is read without the drive.
        Start(started++ % (write ? kStoreStripes : written_));
      }
      if (ends.size() == started) break;
      MEMTIDE_RETURN_IF_ERROR(Await(started - ends.size()));
      ends.push_back(Now());
    }
    if (write) written_ = std::min(started, kStoreStripes);
    return SecondsPerStripe(ends) / static_cast<double>(kStripeSize.count());
  }

 private:
  // A slow drive is asked for few stripes, so that the last one comes in time.
  bool HasTimeFor(uint64_t started, const std::vector<Instant>& ends) const {
    const uint64_t in_flight = started - ends.size();
    if (ends.empty()) return started == 0;
    if (started == kMostStripes || in_flight > ends.size() || in_flight == kMostAtOnce) {
      return false;
    }
    const Duration each = (ends.back() - begin_) / ends.size();
    return Now() - begin_ + each * (in_flight + 1) < kStream;
  }

  // The first half does not count: a drive that limits its speed often lets a burst pass.
  double SecondsPerStripe(const std::vector<Instant>& ends) const {
    const size_t burst = ends.size() / 2;
    const Instant from = burst == 0 ? begin_ : ends[burst - 1];
    return std::chrono::duration<double>(ends.back() - from).count() /
           static_cast<double>(ends.size() - burst);
  }

  void Start(uint64_t stripe) {
    transfer_.offset = kStripeSize * stripe;
    transfer_.size = kStripeSize;
    transfer_.memory = memory_;
    disk_->Start(transfer_, [this](absl::Status status) {
      MutexLock lock(&mutex_);
      ended_.push_back(std::move(status));
      changed_.Signal();
    });
  }
  // Waits for one of the transfers in flight; after an error, for all of them.
  absl::Status Await(uint64_t in_flight) {
    MutexLock lock(&mutex_);
    while (ended_.empty()) changed_.Wait(&mutex_);
    absl::Status status = std::move(ended_.front());
    ended_.pop_front();
    while (!status.ok() && ended_.size() + 1 < in_flight) changed_.Wait(&mutex_);
    return status;
  }

  Disk* const disk_;
  char* const memory_;
  DiskTransfer transfer_;
  Instant begin_;
  uint64_t written_ = 0;  // Stripes of the store that have been written.
  Mutex mutex_;
  CondVar changed_;
  std::deque<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<double> Measure(Disk* disk, StoreId store, char* memory) {
  Stream stream(disk, store, memory);
  MEMTIDE_ASSIGN_OR_RETURN(const double write, stream.Run(DiskTransfer::Direction::kWrite));
  MEMTIDE_ASSIGN_OR_RETURN(const double read, stream.Run(DiskTransfer::Direction::kRead));
  return 2 / (write + read);
}

size_t FirstDirectoryOn(const StoreTable& stores, size_t drive) {
  const std::vector<size_t>& drives = stores.drives();
  return static_cast<size_t>(std::find(drives.begin(), drives.end(), drive) - drives.begin());
}

absl::Status MakeProbe(StoreTable* stores, size_t directory, StoreId store) {
  if (!stores->directories()[directory].direct()) {
    return absl::FailedPreconditionError("its file system has no direct I/O");
  }
  return stores->MakeIn(directory, store, kStripeSize * kStoreStripes);
}

}  // namespace

std::vector<absl::StatusOr<double>> MeasureDrives(Disk* disk, StoreTable* stores) {
  std::vector<absl::StatusOr<double>> speeds(stores->drive_count(), absl::UnknownError(""));
  // All transfers use the same memory: what is read is not looked at.
  const absl::StatusOr<SharedMemory> memory = SharedMemory::Create("memtide-speed", kStripeSize);
  if (!memory.ok()) return std::vector<absl::StatusOr<double>>(speeds.size(), memory.status());
  disk->AddBuffer(memory->data(), memory->size());
  std::vector<std::thread> threads;
  for (size_t drive = 0; drive < speeds.size(); ++drive) {
    threads.emplace_back([&, drive] {
      const StoreId store(static_cast<uint32_t>(drive));
      const absl::Status made = MakeProbe(stores, FirstDirectoryOn(*stores, drive), store);
      speeds[drive] = made.ok() ? Measure(disk, store, memory->data()) : made;
      if (made.ok()) stores->Drop(store);
    });
  }
  for (std::thread& thread : threads) thread.join();
  disk->RemoveBuffer(memory->data());
  return speeds;
}

}  // namespace memtide

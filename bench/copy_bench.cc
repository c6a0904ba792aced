// Measures copies between host and emulated device, against a non-temporal loop over the same
// memory.
//
//   copy_bench [--quick]
//
// Chunks of 64 MiB are copied in pools of 1 GiB each, so that no data is left in a cache. Two
// threads copy in both directions at once. Every copying thread is pinned to its own CPU.
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>
#include <variant>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/shared_memory.h"
#include "bench/harness.h"
#include "bench/nt_loop.h"
#include "daemon/device/emulated_device.h"
#include "daemon/mover/mover.h"

ABSL_FLAG(bool, quick, false, "fewer rounds");

namespace memtide {
namespace {

constexpr Bytes kChunk = MiB(64);
constexpr uint64_t kChunks = 16;
const Bytes kPool = kChunk * kChunks;
constexpr int kInCpu = 0, kOutCpu = 1;

// Copies chunk `index` to the device, or from it.
using Copy = std::function<void(uint64_t index)>;

// A side of the comparison: copies chunks [begin, end) to the device, and with two threads also
// [begin - kChunks / 2, end - kChunks / 2) from it at the same time. Returns when all are copied.
using Side = std::function<void(uint64_t begin, uint64_t end)>;

Side OneWay(Copy in) {
  return [in = std::move(in)](uint64_t begin, uint64_t end) {
    PinThisThread(kInCpu);
    for (uint64_t i = begin; i < end; ++i) in(i);
  };
}

Side BothWays(Copy in, Copy out) {
  return [in = OneWay(std::move(in)), out = std::move(out)](uint64_t begin, uint64_t end) {
    PinThisThread(kOutCpu);  // The new thread inherits this; on a busy CPU it would start late.
    std::thread other([&] {
      // The copies out use the other half of each pool, so no thread reads what the other one
      // writes.
      for (uint64_t i = begin; i < end; ++i) out(i - kChunks / 2);
    });
    in(begin, end);
    other.join();
  };
}

// Runs both sides by turns of a few chunks, so that a short load of other processes slows both.
void Compare(Rounds* rounds, const std::string& figure, const Side& limit, const Side& product,
             int threads) {
  constexpr uint64_t kTurn = 4;
  Duration of_limit{0}, of_product{0};
  Bytes copied;
  for (uint64_t i = threads == 1 ? 0 : kChunks / 2; i < kChunks; i += kTurn) {
    const auto take_turn = [&](const Side& side) { return TimeOf([&] { side(i, i + kTurn); }); };
    if (rounds->product_first()) of_product += take_turn(product);
    of_limit += take_turn(limit);
    if (!rounds->product_first()) of_product += take_turn(product);
    copied += kChunk * kTurn * threads;
  }
  rounds->Add(figure, GigabytesPerSecond(copied, of_limit), GigabytesPerSecond(copied, of_product));
}

// A second mapping of a pool, populated, for the bare loop.
class Window {
 public:
  Window(int fd, Bytes size) : size_(size) {
    void* const data =
        mmap(nullptr, size.count(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    MEMTIDE_CHECK(data != MAP_FAILED) << size;
    data_ = static_cast<char*>(data);
  }
  ~Window() { munmap(data_, size_.count()); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  char* Chunk(uint64_t index) const { return data_ + (kChunk * index).count(); }

 private:
  char* data_;
  Bytes size_;
};

struct Limit {
  Limit(int host, int device) : host_pool(host, kPool), device_pool(device, kPool) {}
  void In(uint64_t i) const { NtLoop(device_pool.Chunk(i), host_pool.Chunk(i), kChunk); }
  void Out(uint64_t i) const { NtLoop(host_pool.Chunk(i), device_pool.Chunk(i), kChunk); }
  Copy in = [this](uint64_t i) { In(i); };
  Copy out = [this](uint64_t i) { Out(i); };

  Window host_pool, device_pool;
};

RoundsOptions Options() {
  RoundsOptions options;
  options.at_most = std::chrono::seconds(absl::GetFlag(FLAGS_quick) ? 5 : 20);
  return options;
}

void MeasureDevice() {
  EmulatedDevice device({kPool, Bytes(), Duration(0)});
  const SharedMemory host = OrDie(SharedMemory::Create("bench-host", kPool));
  const std::unique_ptr<DeviceMemory> memory =
      OrDie(device.Allocate("bench-device", kPool, MemoryKind::kSharedMemory));
  const Limit limit(host.fd(), memory->Export().fd);
  const Copy in = [&](uint64_t i) {
    const Bytes offset = kChunk * i;
    OrDie(device.CopyIn(*memory, offset, host.data() + offset.count(), kChunk));
  };
  const Copy out = [&](uint64_t i) {
    const Bytes offset = kChunk * i;
    OrDie(device.CopyOut(*memory, offset, host.data() + offset.count(), kChunk));
  };
  Rounds rounds(Options());
  while (rounds.Next()) {
    Compare(&rounds, "copy.device.1", OneWay(limit.in), OneWay(in), 1);
    Compare(&rounds, "copy.device.2", BothWays(limit.in, limit.out), BothWays(in, out), 2);
  }
  rounds.Print();
}

// A mover that counts its events, and can wait for its transfers.
class WaitingMover {
 public:
  explicit WaitingMover(Device* device)
      : mover_({device}, nullptr, [this](Event event) { Take(std::move(event)); }) {}

  void MakeRegions() {
    mover_.Start(MakeRegion{kHost, {Tier::kHost}, 0, kPool, kChunk});
    mover_.Start(MakeRegion{kDevice, {Tier::kDevice}, 0, kPool, kChunk});
    Wait(2);
  }
  void Start(StartTransfer::Kind kind, uint64_t chunk) {
    StartTransfer transfer;
    transfer.transfer = TransferId(++last_transfer_);
    transfer.kind = kind;
    const bool in = kind == StartTransfer::Kind::kHostToDevice;
    transfer.from = {in ? kHost : kDevice, kChunk * chunk};
    transfer.to = {in ? kDevice : kHost, kChunk * chunk};
    transfer.size = kChunk;
    mover_.Start(transfer);
  }
  // Blocks until `count` more events have come.
  void Wait(uint64_t count) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    while (done_ < count) changed_.Wait(&mutex_);
    done_ -= count;
  }
  int Descriptor(RegionId region) const { return OrDie(mover_.Export(region)).fd; }

  static constexpr RegionId kHost = RegionId(1), kDevice = RegionId(2);

 private:
  void Take(Event event) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (const auto* region = std::get_if<RegionMade>(&event)) OrDie(region->status);
    if (const auto* transfer = std::get_if<TransferDone>(&event)) OrDie(transfer->status);
    MutexLock lock(&mutex_);
    ++done_;
    changed_.Signal();
  }

  Mutex mutex_;
  CondVar changed_;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_transfer_ = 0;
  Mover mover_;
};

void MeasureMover() {
  EmulatedDevice device({kPool, Bytes(), Duration(0)});
  WaitingMover mover(&device);
  mover.MakeRegions();
  PinThreadsNamed("memtide-in", kInCpu);
  PinThreadsNamed("memtide-out", kOutCpu);
  const int host = mover.Descriptor(WaitingMover::kHost);
  const int memory = mover.Descriptor(WaitingMover::kDevice);
  const Limit limit(host, memory);
  close(host);
  close(memory);
  const Side one_way = [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) mover.Start(StartTransfer::Kind::kHostToDevice, i);
    mover.Wait(end - begin);
  };
  const Side both_ways = [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      mover.Start(StartTransfer::Kind::kDeviceToHost, i - kChunks / 2);
      mover.Start(StartTransfer::Kind::kHostToDevice, i);
    }
    mover.Wait(2 * (end - begin));
  };
  Rounds rounds(Options());
  while (rounds.Next()) {
    Compare(&rounds, "copy.mover.1", OneWay(limit.in), one_way, 1);
    Compare(&rounds, "copy.mover.2", BothWays(limit.in, limit.out), both_ways, 2);
  }
  rounds.Print();
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  memtide::PreferProcess(getpid());
  memtide::MeasureDevice();
  memtide::MeasureMover();
}

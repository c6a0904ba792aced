// Measures copies by the daemon's device, which has a process of its own as in the daemon, against
// plain ones of this process from pinned memory.
#include <atomic>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/shared_memory.h"
#include "bench/gpu/mapped_memory.h"
#include "bench/gpu/probes.h"
#include "bench/gpu/report.h"
#include "daemon/device/open_cuda.h"

namespace memtide::bench {
namespace {

constexpr Bytes kChunk = MiB(64);
constexpr int kCopies = 8;  // Copies in one measurement.
constexpr int kPairs = 9;

int Copies() { return Scaled(kCopies, 1); }
constexpr double kGoal = 0.97;
constexpr double kStagedGoal = 0.85;

enum class Direction { kIn, kOut };  // To the device, and from it.

// One direction in plain CUDA, with its own pinned memory and stream, and a wait after each copy.
class Plain {
 public:
  explicit Plain(Direction direction) : direction_(direction) {
    void* memory = nullptr;
    OrDie(Driver().MemHostAlloc(&memory, kChunk.count(), CU_MEMHOSTALLOC_PORTABLE),
          "cuMemHostAlloc");
    host_ = static_cast<char*>(memory);
    OrDie(Driver().MemAlloc(&device_, kChunk.count()), "cuMemAlloc");
    OrDie(Driver().StreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  ~Plain() {
    OrDie(Driver().StreamDestroy(stream_), "cuStreamDestroy");
    OrDie(Driver().MemFree(device_), "cuMemFree");
    OrDie(Driver().MemFreeHost(host_), "cuMemFreeHost");
  }
  void Copy() const {
    UseFirstGpu();
    for (int i = 0; i < Copies(); ++i) {
      OrDie(direction_ == Direction::kIn
                ? Driver().MemcpyHtoDAsync(device_, host_, kChunk.count(), stream_)
                : Driver().MemcpyDtoHAsync(host_, device_, kChunk.count(), stream_),
            "copying");
      OrDie(Driver().StreamSynchronize(stream_), "cuStreamSynchronize");
    }
  }

 private:
  const Direction direction_;
  char* host_ = nullptr;
  CUdeviceptr device_ = 0;
  CUstream stream_ = nullptr;
};

// One direction through the Device interface, called as the mover calls it: from as many threads as
// the device takes copies at once. Memory that the device need not pin goes through its ring.
class Pooled {
 public:
  enum class Pinned { kNo, kYes };
  Pooled(Device* device, Direction direction, Pinned pinned)
      : device_(device), in_(direction == Direction::kIn), pinned_(pinned) {
    absl::StatusOr<SharedMemory> host = SharedMemory::Create("gpu-probe", kChunk);
    OrDie(host.status());
    host_.emplace(*std::move(host));
    device_->ShareHostMemory(host_->data(), kChunk, host_->fd());
    if (pinned_ == Pinned::kYes) device_->AddHostMemory(host_->data(), kChunk);
    auto memory = device_->Allocate("gpu-probe", kChunk, device_->kinds().front());
    OrDie(memory.status());
    memory_ = *std::move(memory);
  }
  ~Pooled() {
    if (pinned_ == Pinned::kYes) device_->RemoveHostMemory(host_->data());
    device_->UnshareHostMemory(host_->data());
  }
  void Copy() const {
    std::atomic<int> begun{0};
    const auto work = [&] {
      while (begun++ < Copies()) {
        OrDie(in_ ? device_->CopyIn(*memory_, Bytes(0), host_->data(), kChunk)
                  : device_->CopyOut(*memory_, Bytes(0), host_->data(), kChunk));
      }
    };
    std::vector<std::thread> others;
    for (size_t i = 1; i < device_->copies_in_flight(); ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
  }

 private:
  Device* const device_;
  const bool in_;
  const Pinned pinned_;
  absl::optional<SharedMemory> host_;
  std::unique_ptr<DeviceMemory> memory_;
};

template <typename Work>
double Microseconds(const Work& work) {
  const Instant start = Now();
  work();
  return std::chrono::duration<double, std::micro>(Now() - start).count();
}

// Runs both by turns, and reports the pools' speed and its ratio to that of plain CUDA.
template <typename PlainWork, typename PooledWork>
void Compare(const std::string& name, double bytes, double goal, const PlainWork& plain,
             const PooledWork& pooled) {
  plain();
  pooled();
  // The runs before are not counted. The two take turns, so that a change of clocks meets both.
  std::vector<double> ratios, times;
  for (int i = 0; i < Scaled(kPairs, 1); ++i) {
    const double limit = Microseconds(plain);
    times.push_back(Microseconds(pooled));
    ratios.push_back(limit / times.back());
  }
  std::sort(ratios.begin(), ratios.end());
  std::sort(times.begin(), times.end());
  Figure(name, bytes / times[times.size() / 2] / 1e3, "GB/s");
  Ratio(name + ", against plain pinned copies", ratios[ratios.size() / 2], goal);
}

template <typename Copies>
void Both(const Copies& in, const Copies& out) {
  std::thread other([&] { out.Copy(); });
  in.Copy();
  other.join();
}

}  // namespace

void ProbeCopies() {
  const absl::StatusOr<std::unique_ptr<Device>> device =
      OpenCuda("", [](const std::string& line) { Answer("the device warns", line); });
  OrDie(device.status());
  Answer("the device", (*device)->Describe());
  UseFirstGpu();
  const Plain plain_in(Direction::kIn), plain_out(Direction::kOut);
  const Pooled in(device->get(), Direction::kIn, Pooled::Pinned::kYes);
  const Pooled out(device->get(), Direction::kOut, Pooled::Pinned::kYes);
  const Pooled staged_in(device->get(), Direction::kIn, Pooled::Pinned::kNo);
  const Pooled staged_out(device->get(), Direction::kOut, Pooled::Pinned::kNo);
  const double bytes = static_cast<double>(kChunk.count()) * Copies();
  Compare(
      "64 MiB from the host pool to the device", bytes, kGoal, [&] { plain_in.Copy(); },
      [&] { in.Copy(); });
  Compare(
      "64 MiB from the device to the host pool", bytes, kGoal, [&] { plain_out.Copy(); },
      [&] { out.Copy(); });
  Compare(
      "64 MiB both ways at once", 2 * bytes, kGoal, [&] { Both(plain_in, plain_out); },
      [&] { Both(in, out); });
  Compare(
      "64 MiB to the device through the staging ring", bytes, kStagedGoal, [&] { plain_in.Copy(); },
      [&] { staged_in.Copy(); });
  Compare(
      "64 MiB from the device through the staging ring", bytes, kStagedGoal,
      [&] { plain_out.Copy(); }, [&] { staged_out.Copy(); });
}

}  // namespace memtide::bench

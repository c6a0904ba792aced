// Measures copies to and from a GPU through the staging ring against copies of pinned memory, on
// the fake CUDA at the rate of a link.
//
//   staging_bench [--quick] [--rate_mb_s=N] [--chunk_mib=N]
//
// Nothing is measured of a real GPU: the fake's streams move bytes at the rate that is set
// (base/cuda/fake). The benchmark measures whether the copies of the CPU keep up with that rate,
// and whether the pipeline of both has gaps.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/cuda/fake/fake_cuda.h"
#include "base/shared_memory.h"
#include "bench/harness.h"
#include "daemon/device/cuda_device.h"
#include "daemon/device/streaming_copy.h"

ABSL_FLAG(bool, quick, false, "fewer rounds");
ABSL_FLAG(uint64_t, rate_mb_s, 12000, "the link's rate in each direction, in 10^6 bytes a second");
ABSL_FLAG(uint64_t, chunk_mib, 64, "the size of each copy");

namespace memtide {
namespace {

constexpr Bytes kPool = MiB(512);  // More than any cache holds.

enum class Way { kIn, kOut };

// A pool that the device has pinned, or that it copies through the ring.
class Side {
 public:
  enum class Pinned { kNo, kYes };
  Side(CudaDevice* device, Bytes chunk, Pinned pinned)
      : device_(device),
        chunk_(chunk),
        pinned_(pinned),
        host_(OrDie(SharedMemory::Create("bench-host", kPool))),
        memory_(OrDie(device->Allocate("bench", chunk, device->kinds().front()))) {
    if (pinned == Pinned::kYes) device_->AddHostMemory(host_.data(), kPool);
  }
  ~Side() {
    if (pinned_ == Pinned::kYes) device_->RemoveHostMemory(host_.data());
  }

  // Copies the pool once, from as many threads as the Mover has for a direction.
  double GigabytesPerSecondOf(Way way) {
    std::vector<std::thread> threads;
    const size_t count = device_->copies_in_flight();
    const Duration took = TimeOf([&] {
      for (size_t thread = 0; thread < count; ++thread) {
        threads.emplace_back([this, way, thread, count] {
          for (uint64_t i = thread; i < kPool / chunk_; i += count) Copy(way, i);
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
    return GigabytesPerSecond(kPool, took);
  }

 private:
  void Copy(Way way, uint64_t index) {
    char* const host = host_.data() + (chunk_ * index).count();
    OrDie(way == Way::kIn ? device_->CopyIn(*memory_, Bytes(), host, chunk_)
                          : device_->CopyOut(*memory_, Bytes(), host, chunk_));
  }

  CudaDevice* const device_;
  const Bytes chunk_;
  const Pinned pinned_;
  const SharedMemory host_;
  const std::unique_ptr<DeviceMemory> memory_;
};

// The rate at which one CPU copies the pool through a buffer as the ring does, and nothing else.
double CopyRate() {
  static const SharedMemory pool = OrDie(SharedMemory::Create("bench-copy", kPool));
  constexpr Bytes kPiece = MiB(1);
  std::vector<char> lane(StagingRing::kLane.count());
  const Duration took = TimeOf([&] {
    for (uint64_t i = 0; i < kPool / kPiece; ++i) {
      const Bytes buffer = kPiece * (i % (StagingRing::kLane / kPiece));
      std::memcpy(&lane[buffer.count()], pool.data() + (kPiece * i).count(), kPiece.count());
    }
  });
  return GigabytesPerSecond(kPool, took);
}

void Measure() {
  const Bytes rate(absl::GetFlag(FLAGS_rate_mb_s) * 1'000'000);
  fake_cuda::SetDelay(std::chrono::microseconds(5));
  fake_cuda::SetRates(rate, Bytes(rate.count() / 3));
  const std::unique_ptr<CudaDevice> device = OrDie(CudaDevice::Open(CudaDeviceOptions()));
  MEMTIDE_CHECK(!device->host_memory().staging.IsZero());
  const Bytes chunk = MiB(absl::GetFlag(FLAGS_chunk_mib));
  Side pinned(device.get(), chunk, Side::Pinned::kYes);
  Side staged(device.get(), chunk, Side::Pinned::kNo);
  RoundsOptions options;
  options.at_most = std::chrono::seconds(absl::GetFlag(FLAGS_quick) ? 5 : 20);
  Rounds rounds(options);
  while (rounds.Next()) {
    for (const auto& [name, way] : {std::pair("in", Way::kIn), std::pair("out", Way::kOut)}) {
      rounds.Compare(
          absl::StrCat("staging.", name), [&, way] { return pinned.GigabytesPerSecondOf(way); },
          [&, way] { return staged.GigabytesPerSecondOf(way); });
    }
    rounds.Add("staging.memcpy", CopyRate());
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

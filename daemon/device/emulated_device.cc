#include "daemon/device/emulated_device.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/shared_memory.h"
#include "base/status_macros.h"
#include "daemon/device/streaming_copy.h"

namespace memtide {
namespace {

class EmulatedMemory : public DeviceMemory {
 public:
  explicit EmulatedMemory(SharedMemory memory) : memory_(std::move(memory)) {}
  // The pages are free from here on, even if clients still hold descriptors of them.
  ~EmulatedMemory() override { memory_.EmptyAll().IgnoreError(); }

  Bytes size() const override { return memory_.size(); }
  MemoryExport Export() const override {
    return {MemoryKind::kSharedMemory, memory_.size(), memory_.fd(), ""};
  }

  // Device requires memory that came from this device, so the type is known.
  static char* At(const DeviceMemory& memory, Bytes offset, Bytes size) {
    const absl::optional<Bytes> end = CheckedAdd(offset, size);
    MEMTIDE_CHECK(end.has_value() && *end <= memory.size())
        << size << " at " << offset << " of " << memory.size();
    return static_cast<const EmulatedMemory&>(memory).memory_.data() + offset.count();
  }

 private:
  const SharedMemory memory_;
};

// The time is absolute, so that one late wake-up does not delay the calls after it.
void SleepUntil(Instant instant) {
  const auto since_boot = instant.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_boot);
  timespec when;
  when.tv_sec = seconds.count();
  when.tv_nsec = std::chrono::nanoseconds(since_boot - seconds).count();
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, nullptr) == EINTR) {
  }
}

}  // namespace

EmulatedDevice::EmulatedDevice(const EmulatedDeviceOptions& options) : options_(options) {}

std::string EmulatedDevice::Describe() const {
  std::string text = absl::StrCat("emulated device, ", FormatBytes(options_.capacity));
  if (!options_.bytes_per_second.IsZero()) {
    absl::StrAppendFormat(&text, ", %.1f GB/s", options_.bytes_per_second.count() / 1e9);
  }
  if (options_.latency > Duration::zero()) {
    absl::StrAppendFormat(&text, ", %.1f us", options_.latency.count() / 1e3);
  }
  return text;
}

std::vector<MemoryKind> EmulatedDevice::kinds() const { return {MemoryKind::kSharedMemory}; }

// Any host memory is as good as any other.
void EmulatedDevice::AddHostMemory(char* memory, Bytes size) {}
void EmulatedDevice::RemoveHostMemory(char* memory) {}

absl::StatusOr<std::unique_ptr<DeviceMemory>> EmulatedDevice::Allocate(const std::string& name,
                                                                       Bytes size,
                                                                       MemoryKind kind) {
  MEMTIDE_CHECK(kind == MemoryKind::kSharedMemory) << name;
  MEMTIDE_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Create(name, size));
  return std::unique_ptr<DeviceMemory>(new EmulatedMemory(std::move(memory)));
}

absl::Status EmulatedDevice::CopyIn(DeviceMemory& memory, Bytes offset, const char* host,
                                    Bytes size) {
  char* const to = EmulatedMemory::At(memory, offset, size);
  // The link is taken before the copy, so that the copy itself is part of the emulated time.
  const Instant arrived = in_.Take(Now(), TimeFor(size)) + options_.latency;
  StreamCopy(to, host, size);
  SleepUntil(arrived);
  return absl::OkStatus();
}

absl::Status EmulatedDevice::CopyOut(const DeviceMemory& memory, Bytes offset, char* host,
                                     Bytes size) {
  const char* const from = EmulatedMemory::At(memory, offset, size);
  const Instant arrived = out_.Take(Now(), TimeFor(size)) + options_.latency;
  StreamCopy(host, from, size);
  SleepUntil(arrived);
  return absl::OkStatus();
}

absl::Status EmulatedDevice::Zero(DeviceMemory& memory, Bytes offset, Bytes size) {
  char* const to = EmulatedMemory::At(memory, offset, size);
  // A GPU zeroes its own memory: that occupies no link.
  const Instant done = Now() + options_.latency;
  StreamZero(to, size);
  SleepUntil(done);
  return absl::OkStatus();
}

Instant EmulatedDevice::Link::Take(Instant now, Duration busy) {
  MutexLock lock(&mutex_);
  // Copies in one direction share the link: each begins where the one before it ends.
  free_at_ = std::max(free_at_, now) + busy;
  return free_at_;
}

Duration EmulatedDevice::TimeFor(Bytes size) const {
  if (options_.bytes_per_second.IsZero()) return Duration::zero();
  const double seconds =
      static_cast<double>(size.count()) / static_cast<double>(options_.bytes_per_second.count());
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace memtide

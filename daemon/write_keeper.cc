#include "daemon/write_keeper.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "daemon/io/write_counts.h"

namespace memtide {
namespace {

constexpr std::chrono::minutes kPeriod{1};
constexpr std::chrono::hours kDay{24};

std::chrono::seconds UnixTime() {
  // tidy(wall-clock): the age of what was written before a reboot, which no budget depends on.
  const auto now = std::chrono::system_clock::now();
  return std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch());
}

}  // namespace

std::vector<SsdDrive> LoadDrives(const std::vector<std::string>& directories,
                                 const std::vector<Bytes>& per_day) {
  std::vector<SsdDrive> drives;
  const Instant now = Now();
  const std::chrono::seconds unix_now = UnixTime();
  for (size_t i = 0; i < directories.size(); ++i) {
    SsdDrive drive;
    if (!per_day.empty()) drive.per_day = per_day[i];
    const absl::StatusOr<WriteCounts> counts = LoadWriteCounts(directories[i]);
    drive.was_used = !absl::IsNotFound(counts.status());
    if (counts.ok()) {
      drive.written = counts->written;
      for (const WriteCounts::Past& past : counts->last_day) {
        // The wall clock may have been set meanwhile, and the file may say anything.
        if (past.unix_seconds < 0) continue;
        const int64_t age = std::max<int64_t>(0, unix_now.count() - past.unix_seconds);
        if (age > std::chrono::seconds(kDay).count()) continue;
        drive.last_day.push_back({now - std::chrono::seconds(age), past.uid, past.bytes});
      }
    } else if (drive.was_used) {
      spdlog::warn("what was written to {} is counted anew: {}", directories[i],
                   std::string(counts.status().message()));
    }
    drives.push_back(std::move(drive));
  }
  return drives;
}

WriteKeeper::WriteKeeper(std::vector<std::string> directories, const std::vector<SsdDrive>& drives,
                         Inspect inspect)
    : directories_(std::move(directories)),
      inspect_(std::move(inspect)),
      failed_(directories_.size()) {
  for (size_t i = 0; i < directories_.size(); ++i) Save(i, drives[i].written, drives[i].last_day);
  thread_ = std::thread([this] { Run(); });
}

WriteKeeper::~WriteKeeper() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    stopping_.SignalAll();
  }
  thread_.join();
  Keep();
}

void WriteKeeper::Run() {
  for (;;) {
    {
      MutexLock lock(&mutex_);
      const Instant due = Now() + kPeriod;
      for (Instant now = Now(); !stopped_ && now < due; now = Now()) {
        stopping_.WaitFor(&mutex_, due - now);
      }
      if (stopped_) return;
    }
    Keep();
  }
}

void WriteKeeper::Keep() {
  const absl::StatusOr<InspectReply> seen = inspect_();
  if (!seen.ok()) return;  // The engine is busy for long, or stopped; the next minute has all.
  for (size_t i = 0; i < directories_.size(); ++i) {
    Save(i, seen->drives[i].written, seen->past_writes[i]);
  }
}

void WriteKeeper::Save(size_t directory, Bytes written, const std::vector<PastWrites>& past) {
  WriteCounts counts;
  counts.written = written;
  const Instant now = Now();
  const std::chrono::seconds unix_now = UnixTime();
  for (const PastWrites& each : past) {
    const auto age = std::chrono::duration_cast<std::chrono::seconds>(now - each.at);
    counts.last_day.push_back({(unix_now - age).count(), each.uid, each.bytes});
  }
  const absl::Status saved = SaveWriteCounts(directories_[directory], counts);
  if (!saved.ok() && !failed_[directory]) {
    spdlog::warn("what is written to the SSD may not be counted after a restart: {}",
                 std::string(saved.message()));
  }
  failed_[directory] = !saved.ok();
}

}  // namespace memtide

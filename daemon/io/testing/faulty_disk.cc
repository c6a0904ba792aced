#include "daemon/io/testing/faulty_disk.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

namespace memtide {
namespace {

Bytes HalfOf(Bytes size) {
  return std::max(RoundDown(Bytes(size.count() / 2), kDiskAlignment), kDiskAlignment);
}

}  // namespace

void FaultyDisk::FailTransfer(uint64_t transfer, absl::Status status) {
  MutexLock lock(&mutex_);
  failures_[transfer] = std::move(status);
}

void FaultyDisk::TearTransfer(uint64_t transfer, absl::Status status) {
  MutexLock lock(&mutex_);
  tears_[transfer] = std::move(status);
}

void FaultyDisk::LieAbout(uint64_t transfer, Lie lie) {
  MutexLock lock(&mutex_);
  lies_[transfer] = lie;
}

void FaultyDisk::HoldTransfer(uint64_t transfer) {
  MutexLock lock(&mutex_);
  to_hold_.insert(transfer);
}

void FaultyDisk::AwaitTransfers(uint64_t count) {
  MutexLock lock(&mutex_);
  while (transfers_ < count) changed_.Wait(&mutex_);
}

void FaultyDisk::Release() {
  std::vector<Held> held;
  {
    MutexLock lock(&mutex_);
    to_hold_.clear();
    held.swap(held_);
  }
  for (auto last = held.rbegin(); last != held.rend(); ++last) {
    disk_->Start(last->transfer, std::move(last->done));
  }
}

void FaultyDisk::FailStore(uint64_t store, absl::Status status) {
  MutexLock lock(&mutex_);
  store_failures_[store] = std::move(status);
}

absl::Status FaultyDisk::MakeStore(StoreId store, Bytes size) {
  {
    MutexLock lock(&mutex_);
    const auto failure = store_failures_.find(stores_++);
    if (failure != store_failures_.end()) return failure->second;
  }
  return disk_->MakeStore(store, size);
}

void FaultyDisk::Start(const DiskTransfer& transfer, Done done) {
  DiskTransfer started = transfer;
  absl::Status failure, tear;
  absl::optional<Lie> lie;
  {
    MutexLock lock(&mutex_);
    const uint64_t number = transfers_++;
    changed_.SignalAll();
    if (to_hold_.count(number) > 0) {
      held_.push_back({transfer, std::move(done)});
      return;
    }
    if (const auto found = failures_.find(number); found != failures_.end()) {
      failure = found->second;
    }
    if (const auto found = tears_.find(number); found != tears_.end()) tear = found->second;
    if (const auto found = lies_.find(number); found != lies_.end()) lie = found->second;
  }
  if (!failure.ok()) {
    done(failure);
    return;
  }
  if (lie.has_value()) return Start(transfer, *lie, std::move(done));
  if (!tear.ok()) {
    started.size = HalfOf(transfer.size);
    done = [tear, done = std::move(done)](absl::Status) { done(tear); };
  }
  disk_->Start(started, std::move(done));
}

void FaultyDisk::Start(const DiskTransfer& transfer, Lie lie, Done done) {
  DiskTransfer started = transfer;
  const size_t middle = transfer.size.count() / 2;
  switch (lie) {
    case Lie::kForget:
      return done(absl::OkStatus());
    case Lie::kTear:
      started.size = HalfOf(transfer.size);
      break;
    case Lie::kMisdirect:
      started.offset += transfer.size;
      break;
    case Lie::kFlip:
      if (transfer.direction == DiskTransfer::Direction::kRead) {
        done = [memory = transfer.memory + middle, done = std::move(done)](absl::Status status) {
          *memory ^= 1;
          done(std::move(status));
        };
        break;
      }
      // The memory itself stays as it is.
      const std::shared_ptr<char> copy(
          static_cast<char*>(std::aligned_alloc(kDiskAlignment.count(), transfer.size.count())),
          std::free);
      std::memcpy(copy.get(), transfer.memory, transfer.size.count());
      copy.get()[middle] ^= 1;
      started.memory = copy.get();
      done = [copy, done = std::move(done)](absl::Status status) { done(std::move(status)); };
      break;
  }
  disk_->Start(started, std::move(done));
}

}  // namespace memtide

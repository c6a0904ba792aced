#include "daemon/device/cuda_host_memory.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {
namespace {

constexpr Bytes kPiece = GiB(64);
// Scripts pin memory, too (data loaders), and CUDA itself needs some for events and streams.
constexpr uint64_t kLeftShare = 8;
constexpr Bytes kMostLeft = MiB(256);

absl::Status UnpinPiece(const CudaDriver& driver, char* memory) {
  return CudaStatus(driver.MemHostUnregister(memory), "cuMemHostUnregister");
}

}  // namespace

void UnpinRange(const CudaDriver& driver, char* memory, Bytes size) {
  for (Bytes at; at < size; at += std::min(kPiece, size - at)) {
    char* const piece = memory + at.count();
    if (!UnpinPiece(driver, piece).ok()) UnpinPiece(driver, piece).IgnoreError();
  }
}

absl::Status PinRange(const CudaDriver& driver, char* memory, Bytes size) {
  for (Bytes at; at < size;) {
    const Bytes piece = std::min(kPiece, size - at);
    const CUresult error =
        driver.MemHostRegister(memory + at.count(), piece.count(), CU_MEMHOSTREGISTER_PORTABLE);
    const absl::Status status = CudaStatus(
        error, absl::StrCat("cuMemHostRegister of ", FormatBytes(piece), " of host memory"));
    // A reset of the GPU may have left the piece pinned.
    if (!status.ok() && error != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
      UnpinRange(driver, memory, at);
      return status;
    }
    at += piece;
  }
  return absl::OkStatus();
}

CudaHostMemory::Use::Use(CudaHostMemory* memory, const char* begin, Bytes size) : memory_(memory) {
  MutexLock lock(&memory->mutex_);
  const auto after = memory->ranges_.upper_bound(begin);
  if (after == memory->ranges_.begin()) return;
  auto& [start, range] = *std::prev(after);
  if (!range.pinned || begin + size.count() > start + range.size.count()) return;
  ++range.uses;
  range_ = start;
}

CudaHostMemory::Use::~Use() {
  if (range_ == nullptr) return;
  MutexLock lock(&memory_->mutex_);
  --memory_->ranges_.at(range_).uses;
}

absl::Status CudaHostMemory::Refusal(Bytes size) {
  if (!limit_ || amounts_.pinned + size <= *limit_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(FormatBytes(amounts_.pinned),
                   " of host memory are pinned, and the machine permitted ", FormatBytes(*limit_)));
}

absl::Status CudaHostMemory::Add(char* memory, Bytes size) {
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    status = Refusal(size);
  }
  if (status.ok()) {
    status = PinRange(*driver_, memory, size);
    if (!status.ok()) Learn(status);
  }
  MutexLock lock(&mutex_);
  Range range;
  range.size = size;
  range.pinned = status.ok();
  MEMTIDE_CHECK(ranges_.emplace(memory, range).second) << "another range begins there";
  amounts_.added += size;
  if (range.pinned) amounts_.pinned += size;
  return status;
}

void CudaHostMemory::Remove(char* memory) {
  Range range;
  {
    MutexLock lock(&mutex_);
    const auto found = ranges_.find(memory);
    MEMTIDE_CHECK(found != ranges_.end()) << "host memory that was not added";
    // The caller frees the memory next, which must not be pinned any more then.
    while (found->second.changing) changed_.Wait(&mutex_);
    range = found->second;
    MEMTIDE_CHECK(range.uses == 0) << "host memory that a copy uses";
    ranges_.erase(found);
  }
  if (range.pinned || range.may_be_pinned) UnpinRange(*driver_, memory, range.size);
  MutexLock lock(&mutex_);
  amounts_.added -= range.size;
  if (range.pinned) amounts_.pinned -= range.size;
  // Most of what was there when the limit was found is gone, and other processes may be, too.
  if (limit_ && amounts_.pinned * 2 <= *limit_) limit_.reset();
}

CudaHostMemory::Victims CudaHostMemory::Choose(Bytes size) {
  Victims victims;
  Bytes chosen;
  for (auto& [start, range] : ranges_) {
    if (chosen >= size) break;
    if (!range.pinned || range.uses > 0) continue;
    // Copies that begin now use the staging buffers.
    range.pinned = false;
    range.changing = true;
    chosen += range.size;
    victims.emplace_back(start, range.size);
  }
  return victims;
}

Bytes CudaHostMemory::Release(Bytes size) {
  Victims victims;
  {
    MutexLock lock(&mutex_);
    victims = Choose(size);
  }
  Bytes released;
  for (const auto& [memory, bytes] : victims) {
    UnpinRange(*driver_, memory, bytes);
    released += bytes;
  }
  MutexLock lock(&mutex_);
  amounts_.pinned -= released;
  limit_ = amounts_.pinned;
  for (const auto& [memory, bytes] : victims) ranges_.at(memory).changing = false;
  changed_.SignalAll();
  return released;
}

void CudaHostMemory::Learn(const absl::Status& failure) {
  if (failure.code() != absl::StatusCode::kResourceExhausted) return;
  Release(std::min(Bytes(amounts().pinned.count() / kLeftShare), kMostLeft));
}

absl::Status CudaHostMemory::PinAgain() {
  Victims ranges;
  {
    MutexLock lock(&mutex_);
    for (auto& [start, range] : ranges_) {
      MEMTIDE_CHECK(range.uses == 0 && !range.changing) << "a reset during a call";
      range.may_be_pinned = range.may_be_pinned || range.pinned;
      range.pinned = false;
      ranges.emplace_back(start, range.size);
    }
    amounts_.pinned = Bytes();
    limit_.reset();
  }
  absl::Status failed;
  for (const auto& [start, size] : ranges) {
    absl::Status status;
    {
      MutexLock lock(&mutex_);
      status = Refusal(size);
    }
    if (status.ok()) {
      status = PinRange(*driver_, start, size);
      if (!status.ok()) Learn(status);
    }
    if (!status.ok()) {
      failed = status;
      continue;
    }
    MutexLock lock(&mutex_);
    Range& range = ranges_.at(start);
    range.pinned = true;
    range.may_be_pinned = false;
    amounts_.pinned += size;
  }
  return failed;
}

CudaHostMemory::Amounts CudaHostMemory::amounts() const {
  MutexLock lock(&mutex_);
  return amounts_;
}

}  // namespace memtide

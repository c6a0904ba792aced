#include "daemon/device/cuda_host_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {
namespace {

constexpr Bytes kPiece = GiB(64);

}  // namespace

absl::Status CudaHostMemory::UnpinPiece(char* memory) {
  return CudaStatus(driver_->MemHostUnregister(memory), "cuMemHostUnregister");
}

void CudaHostMemory::Unpin(char* memory, Bytes size) {
  for (Bytes at; at < size; at += std::min(kPiece, size - at)) {
    char* const piece = memory + at.count();
    if (!UnpinPiece(piece).ok()) UnpinPiece(piece).IgnoreError();
  }
}

absl::Status CudaHostMemory::Pin(char* memory, Bytes size) {
  for (Bytes at; at < size;) {
    const Bytes piece = std::min(kPiece, size - at);
    const CUresult error =
        driver_->MemHostRegister(memory + at.count(), piece.count(), CU_MEMHOSTREGISTER_PORTABLE);
    const absl::Status status = CudaStatus(
        error, absl::StrCat("cuMemHostRegister of ", FormatBytes(piece), " of host memory"));
    // A reset of the GPU may have left the piece pinned.
    if (!status.ok() && error != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
      Unpin(memory, at);
      return status;
    }
    at += piece;
  }
  return absl::OkStatus();
}

absl::Status CudaHostMemory::Add(char* memory, Bytes size) {
  const absl::Status status = Pin(memory, size);
  MutexLock lock(&mutex_);
  MEMTIDE_CHECK(ranges_.emplace(memory, Range{size, status.ok()}).second) << size;
  return status;
}

void CudaHostMemory::Remove(char* memory) {
  Range range;
  {
    MutexLock lock(&mutex_);
    const auto found = ranges_.find(memory);
    MEMTIDE_CHECK(found != ranges_.end()) << "host memory that was not added";
    range = found->second;
    ranges_.erase(found);
  }
  if (range.pinned) Unpin(memory, range.size);
}

absl::Status CudaHostMemory::PinAgain() {
  std::map<char*, Range> ranges;
  {
    MutexLock lock(&mutex_);
    // The ranges are pinned below without the lock, because the calls of CUDA may take long.
    ranges = ranges_;
  }
  absl::Status failed;
  for (auto& [memory, range] : ranges) {
    const absl::Status status = Pin(memory, range.size);
    range.pinned = status.ok();
    if (!status.ok()) failed = status;
  }
  MutexLock lock(&mutex_);
  ranges_ = ranges;
  return failed;
}

}  // namespace memtide

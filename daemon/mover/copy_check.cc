#include "daemon/mover/copy_check.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

// A check reads the copy in pieces of at most this size.
constexpr Bytes kCheckedAtOnce = MiB(8);

}  // namespace

CopyCheck::~CopyCheck() {
  if (piece_.has_value()) device_->UnshareHostMemory(piece_->data());
}

absl::Status CopyCheck::FindDifference(const DeviceMemory& memory, Bytes offset, const char* host,
                                       Bytes size) {
  if (!piece_.has_value()) {
    MEMTIDE_ASSIGN_OR_RETURN(piece_, SharedMemory::Create("memtide-checks", kCheckedAtOnce));
    device_->ShareHostMemory(piece_->data(), piece_->size(), piece_->fd());
  }
  char* const checked = piece_->data();
  for (Bytes at; at < size; at += kCheckedAtOnce) {
    const Bytes piece = std::min(size - at, kCheckedAtOnce);
    const absl::Status copied = device_->CopyOut(memory, offset + at, checked, piece);
    // DATA_LOSS would say that the copies differ. If the memory has failed, the copy in host memory
    // is the whole one, and the drop of the other goes on.
    if (absl::IsDataLoss(copied)) return absl::UnavailableError(copied.message());
    MEMTIDE_RETURN_IF_ERROR(copied);
    const char* const expected = host + at.count();
    if (std::memcmp(expected, checked, piece.count()) == 0) continue;
    const char* const differs = std::mismatch(expected, expected + piece.count(), checked).first;
    return absl::DataLossError(
        absl::StrCat("its copies on the device and in host memory differ at byte ",
                     at.count() + (differs - expected)));
  }
  return absl::OkStatus();
}

}  // namespace memtide

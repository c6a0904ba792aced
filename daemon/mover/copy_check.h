// CopyCheck: compares copies on a device with those in host memory. Use from one thread.
#ifndef MEMTIDE_DAEMON_MOVER_COPY_CHECK_H_
#define MEMTIDE_DAEMON_MOVER_COPY_CHECK_H_

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/shared_memory.h"
#include "daemon/device/device.h"

namespace memtide {

class CopyCheck {
 public:
  // `device` must outlive the check, and so must its memory.
  explicit CopyCheck(Device* device) : device_(device) {}
  ~CopyCheck();
  CopyCheck(const CopyCheck&) = delete;
  CopyCheck& operator=(const CopyCheck&) = delete;

  // OK if both hold the same bytes, else DATA_LOSS with where they differ first. Other errors: they
  // could not be compared.
  absl::Status FindDifference(const DeviceMemory& memory, Bytes offset, const char* host,
                              Bytes size);

 private:
  Device* const device_;
  absl::optional<SharedMemory> piece_;  // A piece of a copy, from the first check on.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_MOVER_COPY_CHECK_H_

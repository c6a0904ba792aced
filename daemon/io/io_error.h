// An errno becomes a Status at the seam to the disk, and nowhere else.
#ifndef MEMTIDE_DAEMON_IO_IO_ERROR_H_
#define MEMTIDE_DAEMON_IO_IO_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace memtide {

// "ENOSPC (No space left on device)".
std::string ErrnoName(int error);

// A failed write, or a failed attempt to make a file: RESOURCE_EXHAUSTED when there is no room
// (disk, quota, file size limit, memory, descriptors), else INTERNAL.
absl::Status WriteError(int error, absl::string_view what);
// A failed read: DATA_LOSS when the medium failed, else INTERNAL.
absl::Status ReadError(int error, absl::string_view what);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_IO_ERROR_H_

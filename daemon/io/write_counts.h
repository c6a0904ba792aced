// WriteCounts: what was written to the drive of an SSD directory, in a file there, which outlives
// daemons and reboots.
//
// The file is text, with one line for the sum and one for each user and ten minutes of the last
// day. Times are of the wall clock: no other one goes on after a reboot. A reader takes all of it
// or nothing. Functions without state; the directory is claimed by this process (StoreDirectory),
// so that no other process writes there.
#ifndef MEMTIDE_DAEMON_IO_WRITE_COUNTS_H_
#define MEMTIDE_DAEMON_IO_WRITE_COUNTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace memtide {

struct WriteCounts {
  struct Past {
    int64_t unix_seconds = 0;
    uint32_t uid = 0;
    Bytes bytes;
  };
  Bytes written;  // In all.
  std::vector<Past> last_day;
};

// NOT_FOUND: no daemon has used the directory yet. DATA_LOSS: the file is no such file; the message
// has the line.
absl::StatusOr<WriteCounts> LoadWriteCounts(const std::string& directory);
// Replaces the file whole: a crash leaves the old one or the new one.
absl::Status SaveWriteCounts(const std::string& directory, const WriteCounts& counts);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_WRITE_COUNTS_H_

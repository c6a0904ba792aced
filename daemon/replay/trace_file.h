// Traces in files: a gzip-compressed memtide.v1.Trace, named *.trace.gz.
#ifndef MEMTIDE_DAEMON_REPLAY_TRACE_FILE_H_
#define MEMTIDE_DAEMON_REPLAY_TRACE_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "memtide/v1/trace.pb.h"

namespace memtide {

// NOT_FOUND: cannot be read. INVALID_ARGUMENT: is none. Both name the file. At most 2 GiB,
// unpacked.
absl::StatusOr<v1::Trace> LoadTrace(const std::string& path);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_TRACE_FILE_H_

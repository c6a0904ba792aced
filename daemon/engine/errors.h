// Errors that several classes of the engine return. Engine-internal.
#ifndef MEMTIDE_DAEMON_ENGINE_ERRORS_H_
#define MEMTIDE_DAEMON_ENGINE_ERRORS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/engine/interface/events.h"
#include "daemon/engine/interface/types.h"
#include "daemon/engine/tables/chunk_table.h"

namespace memtide {

// INVALID_ARGUMENT: no call may wait so long.
absl::Status CheckDeadline(const Limits& limits, Duration deadline);
// INVALID_ARGUMENT: one event would learn too much at once.
absl::Status CheckMoments(const Limits& limits, const std::vector<MomentReport>& moments);
// The error of a read of a torn chunk.
absl::Status TornChunkError(const ChunkTable& chunks, ChunkIndex index);
// The error of fetches that wait for a chunk when it is freed.
absl::Status FreedChunkError(const ChunkTable& chunks, ChunkIndex index);
// The reply to a call that the client is to make again at once.
absl::Status CallAgain(const std::string& why);
// The reply to a call that has waited for long for a budget of writes, and has to wait on.
absl::Status AwaitsBudget(const std::string& what);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_ERRORS_H_

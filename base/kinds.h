// What chunks hold, what a lease permits, and what a job is doing: words that the daemon and its
// clients share. Value types; the names are those of the protocol.
#ifndef MEMTIDE_BASE_KINDS_H_
#define MEMTIDE_BASE_KINDS_H_

#include <cstdint>

namespace memtide {

// What a chunk holds; decides nothing yet but is counted apart wherever people look.
enum class ChunkKind : uint8_t { kOther, kParameter, kGradient, kOptimizerState, kActivation };
inline constexpr int kChunkKinds = 5;

// What a lease permits. A write lease makes a new version of the chunk: copies at other tiers are
// stale from the moment of the grant.
enum class Access : uint8_t { kRead, kWrite };

// What a job is doing at a moment; see trace.proto.
enum class Phase : uint8_t { kOther, kForward, kBackward, kStep };

}  // namespace memtide

#endif  // MEMTIDE_BASE_KINDS_H_

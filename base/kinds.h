// ChunkKind, Access, Phase: enums that the daemon and its clients share. Value types; their names
// are those of the protocol.
#ifndef MEMTIDE_BASE_KINDS_H_
#define MEMTIDE_BASE_KINDS_H_

#include <cstdint>

namespace memtide {

// ChunkKind changes no decision of the engine; listings and statistics show it.
enum class ChunkKind : uint8_t { kOther, kParameter, kGradient, kOptimizerState, kActivation };
inline constexpr int kChunkKinds = 5;

// The access of a lease. Granting a write lease makes a new version of the chunk, so its copies at
// other tiers are stale from then on.
enum class Access : uint8_t { kRead, kWrite };

// The part of an iteration that a moment belongs to; see trace.proto.
enum class Phase : uint8_t { kOther, kForward, kBackward, kStep };

}  // namespace memtide

#endif  // MEMTIDE_BASE_KINDS_H_

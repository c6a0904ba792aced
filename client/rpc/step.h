// OwnPart, CommitRequest and their results: one part of an optimizer step, which this process or
// another rank computes, and the commit that makes a whole step visible.
//
// Value types. proto/memtide/v1/optimizer.proto defines the semantics; here places stand for
// chunks.
#ifndef MEMTIDE_CLIENT_RPC_STEP_H_
#define MEMTIDE_CLIENT_RPC_STEP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "base/digest.h"
#include "client/memory/place.h"
#include "memtide/v1/optimizer.pb.h"

namespace memtide::client {

// A part's work and the bytes that it reads, for ranks that may want the same. Digests are those of
// StartPartRequest.
struct PartContents {
  Digest work;  // Set.
  // By number of a place that is read, set or not. Empty: none is.
  std::vector<Digest> reads;
};

// A part that this process computes. Its first `reads` places are read, and the others written.
struct OwnPart {
  uint64_t id = 0;  // Not zero, and not that of another part that has not ended.
  std::vector<PlaceId> places;
  uint32_t reads = 0;
  absl::optional<PartContents> contents;  // Absent: the part is of this session alone.
};

// kComputing: the part has begun. In the other cases it has not: kMade, because another rank has
// computed it, and the written chunks have its results; kNeedsDigests, because more of its
// `contents` must be known first. Both only for parts with contents.
enum class PartState : uint8_t { kComputing, kMade, kNeedsDigests };

// How the part of another rank, which writes the same chunks, differs: in its work, or in the bytes
// of places that are read (their numbers).
struct PartDifference {
  uint32_t rank = 0;
  bool work = false;
  std::vector<uint32_t> reads;
};

// The daemon's answer about a part that was to begin.
struct PartOutcome {
  PartState state = PartState::kComputing;
  // kNeedsDigests: the places whose digests are needed, by their numbers. At most OwnPart::reads.
  std::vector<uint32_t> unknown_reads;
  absl::optional<PartDifference> difference;  // Only with kComputing.
};

// The addresses of the chunks of a part, in the order of its places, if it has begun.
struct StartedPart {
  PartOutcome outcome;
  std::vector<char*> addresses;
};

// How it ended. Unless it was computed, the written chunks hold nothing.
struct PartResult {
  bool computed = false;
  uint64_t non_finite_gradients = 0;
};

// A job's last committed step, numbered from 1; zero: none. The manifest is an opaque byte string.
struct CommittedStep {
  uint64_t step = 0;
  std::string manifest;
};

// A chunk, and how many write leases and commits it has had.
struct ChunkVersion {
  ChunkId chunk;
  uint64_t version = 0;

  bool operator==(const ChunkVersion& other) const {
    return chunk == other.chunk && version == other.version;
  }
  bool operator!=(const ChunkVersion& other) const { return !(*this == other); }
};

// Commits a step: each chunk gets the content of its shadow chunk, all at once. With
// `keep_old_content` the shadow chunks get the previous content; without it they hold nothing
// afterwards. `with_all_ranks`: MEMTIDE_WITH_ALL_RANKS (memtide.h).
struct CommitRequest {
  CommittedStep committed;
  bool keep_old_content = false;
  bool with_all_ranks = false;
  // The chunks at the places, and the versions that they must have still. Empty: any will do.
  std::vector<ChunkVersion> unwritten;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_STEP_H_

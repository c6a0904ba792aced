// StepPart, OwnPart, CommitRequest and their results: one part of an optimizer step, which the
// daemon or this process computes, and the commit that makes a whole step visible.
//
// Value types. proto/memtide/v1/optimizer.proto defines the semantics; here places stand for
// chunks.
#ifndef MEMTIDE_CLIENT_RPC_STEP_H_
#define MEMTIDE_CLIENT_RPC_STEP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/memory/place.h"
#include "memtide/v1/optimizer.pb.h"

namespace memtide::client {

struct StepPart {
  // The step reads the first `reads` of these places and writes the others.
  std::vector<PlaceId> places;
  uint32_t reads = 0;
  // Chunk numbers in it are indices into `places`. DaemonSession fills in chunk_ids, reads and
  // moments.
  v1::StepRequest request;
};

// A part that this process computes. Its first `reads` places are read, and the others written.
struct OwnPart {
  uint64_t id = 0;  // Not zero, and not that of another part that has not ended.
  std::vector<PlaceId> places;
  uint32_t reads = 0;
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
};

// Commits a step: each chunk gets the content of its shadow chunk, all at once. With
// `keep_old_content` the shadow chunks get the previous content; without it they hold nothing
// afterwards.
struct CommitRequest {
  CommittedStep committed;
  bool keep_old_content = false;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_STEP_H_

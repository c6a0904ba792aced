// The nouns that events, effects and the engine share. Plain values; no behaviour, no threads.
#ifndef MEMTIDE_DAEMON_ENGINE_TYPES_H_
#define MEMTIDE_DAEMON_ENGINE_TYPES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/kinds.h"
#include "daemon/pool/tier.h"

namespace memtide {

// What a job uses at a moment; see trace.proto.
struct UseReport {
  ChunkId chunk;
  Access access = Access::kRead;
};
struct MomentReport {
  Phase phase = Phase::kOther;
  std::string name;
  Bytes own_device, own_host;
  std::vector<UseReport> uses;
  bool continues = false, ends_iteration = false;
};

// Where a slot is. For device and host: a byte offset in a region of shared memory. For SSD: a byte
// offset in a job's store (the store's files are striped by the io seam, not here).
struct MemoryPlace {
  RegionId region;
  Bytes offset;
};
struct StorePlace {
  StoreId store;
  Bytes offset;
};

// A granted lease: the chunk is at `place` of `tier` and stays there until it is released.
struct Lease {
  ChunkId chunk;
  Tier tier = Tier::kHost;
  MemoryPlace place;
  Version version;
  Access access = Access::kRead;
};

// One chunk as Describe and the chunk listing show it.
struct ChunkInfo {
  ChunkId chunk;
  JobId job;
  ChunkKind kind = ChunkKind::kOther;
  Version version;
  // Valid copies of the current version. All false: never written, reads as zeros.
  bool on_device = false, on_host = false, on_ssd = false;
  bool moving = false;
  uint32_t leases = 0;
  // A writer died while it held the chunk: the bytes are neither the old nor the new version.
  bool torn = false;
};

// One tier's pool. used + reserved + withheld + scrubbing + free = capacity, always.
struct PoolUsage {
  Tier tier = Tier::kHost;
  Bytes capacity;
  Bytes used;       // Slots that hold a chunk's copy, or are being filled with one.
  Bytes reserved;   // Slots lent to a job that hold nothing now.
  Bytes withheld;   // Slots lent to a job whose memory the machine has, while it is short of it.
  Bytes scrubbing;  // Memory of ended jobs that is not yet given back.
  Bytes free;       // Lent to nobody.
  // Free, or others would cede it to a job that needs it: what an elastic share may come to.
  Bytes obtainable;
};

// Bytes of one kind that have a valid copy on each tier.
struct KindUsage {
  ChunkKind kind = ChunkKind::kOther;
  Bytes allocated, device, host, ssd;
};

struct SessionInfo {
  SessionId session;
  uint32_t uid = 0;
  int32_t pid = 0;
  JobId job;  // Meaningful when `open`.
  bool open = false;
  std::string job_name;
  uint32_t leases = 0;
  Bytes chunk_size, device_share, host_share;
  Bytes host_withheld;  // Of the share, while the machine is short of memory.
  std::vector<KindUsage> kinds;
};

// Counters since the engine began. Every one only grows.
struct Counters {
  uint64_t events = 0, fetches = 0, fetch_hits = 0, evictions = 0, dropped_clean = 0, revokes = 0;
  // Of all jobs: iterations that were reported, and those that were not as expected.
  uint64_t iterations = 0, iteration_surprises = 0;
  // Optimizer steps: parts that were computed, and whole ones that were published.
  uint64_t step_parts = 0, steps_published = 0, non_finite_gradients = 0;
  uint64_t transfers_failed = 0, calls_refused = 0, sessions_lost = 0, deadlines_exceeded = 0;
  Bytes host_to_device, device_to_host, ssd_read, ssd_written, zeroed;
  Bytes withheld;               // Memory of slots that went to the machine.
  Bytes host_ceded, ssd_ceded;  // Taken from elastic shares for other jobs.
  // Time that fetches waited, by what they waited for. A fetch counts once, under the slowest
  // thing it needed: ssd over device copy over room in a pool.
  Duration stalled_on_ssd{0}, stalled_on_copy{0}, stalled_on_room{0};
};

// Limits; each is refused with RESOURCE_EXHAUSTED naming it, and counted in calls_refused.
struct Limits {
  uint32_t sessions = 256;          // fds: two per session stay far below the usual 1,024.
  uint32_t sessions_per_uid = 64;   // One user cannot take every session.
  uint32_t chunks_per_call = 4096;  // Replies stay below the 1 MiB message cap.
  uint32_t chunks = 1 << 20;        // 64 TiB at 64 MiB a chunk, 512 MiB of tables at most.
  uint32_t waiting_calls_per_session = 256;
  uint32_t remembered_replies_per_session = 128;
  // Reported ones. At the end of an iteration all chunks of the job are looked at.
  uint32_t moments_per_call = 4096, uses_per_call = 16384, iteration_ends_per_call = 4;
  uint32_t step_pieces = 8192;      // Pieces and copies of one StepCall: 1 MiB holds so many.
  uint32_t note_bytes = 512 << 10;  // Of a job; a request is 1 MiB at most.
  uint32_t device_regions = 4096;   // Of a job that has one for each slot: descriptors in a client.
  Duration max_wait = std::chrono::minutes(10);       // Longest a fetch may wait.
  Duration session_lease = std::chrono::seconds(60);  // Without a renewal: the client hangs.
  Duration max_time_to_live = std::chrono::hours(24);
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TYPES_H_

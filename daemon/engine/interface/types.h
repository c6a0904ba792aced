// The nouns that events, effects and the engine share. Plain values; no behaviour, no threads.
#ifndef MEMTIDE_DAEMON_ENGINE_INTERFACE_TYPES_H_
#define MEMTIDE_DAEMON_ENGINE_INTERFACE_TYPES_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/kinds.h"
#include "daemon/pool/tier.h"
#include "proto/protocol.h"

namespace memtide {

// With fewer slots than this at a tier, no chunk can be promoted while others are in use.
inline constexpr uint32_t kMinSlots = 4;
// ClientQuiet comes at most this long after the end of a session.
inline constexpr Duration kQuietWithin = std::chrono::seconds(8);
inline constexpr uint32_t kMostDevices = 256;    // One node has no more.
inline constexpr Bytes kMaxRegionSize = GiB(1);  // One registered io_uring buffer.

// A chunk's number in the engine's table: the low 32 bits of its id. The high 32 bits are the
// generation of the entry.
using ChunkIndex = Id<struct ChunkIndexTag, uint32_t>;
// No chunk: an unused member number, or no counterpart.
inline constexpr ChunkIndex kNoChunk(~uint32_t{0});
inline ChunkIndex IndexOf(ChunkId id) { return ChunkIndex(static_cast<uint32_t>(id.value())); }
inline uint32_t GenerationOf(ChunkId id) { return static_cast<uint32_t>(id.value() >> 32); }

// A job uses the chunk at a moment; see trace.proto.
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

// Where a slot is. On device and host: a byte offset in a region of shared memory. On SSD: a byte
// offset in a store of the job, whose files the io seam stripes.
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

// An id of a chunk of several ranks, and the rank that knows the chunk by it.
struct RankName {
  ChunkId id;
  uint32_t rank = 0;
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
  std::vector<RankName> names;  // In a job of several ranks.
};

// One pool. used + reserved + balloon + scrubbing + free = capacity, always.
struct PoolUsage {
  Pool pool;
  Bytes capacity;
  Bytes used;       // Slots that hold a chunk's copy, or are being filled with one.
  Bytes reserved;   // Empty slots that are lent to a job.
  Bytes balloon;    // Slots lent to a job whose pages the machine has, while it is short of them.
  Bytes scrubbing;  // Memory of ended jobs that is not yet given back.
  Bytes free;       // Lent to no job.
  // Free, or reclaimed from other jobs on demand: the limit of a new elastic share.
  Bytes obtainable;
  // A part of `reserved`: slots that what a killed process left on the device may still write to.
  Bytes quarantined;
};

// Bytes of one kind that have a valid copy on each tier.
struct KindUsage {
  ChunkKind kind = ChunkKind::kOther;
  Bytes allocated, device, host, ssd;
  Bytes shared;  // Sharing contents saves these bytes.
};

// RankUse is one rank's part of the job that several ranks share.
struct RankUse {
  Bytes named;   // The entries that its ids name.
  Bytes shared;  // Ids of other ranks name these entries, too.
};

struct SessionInfo {
  SessionId session;
  uint32_t uid = 0;
  int32_t pid = 0;
  JobId job;  // Meaningful when `open`.
  bool open = false;
  std::string job_name;
  uint32_t rank = 0, ranks = 0;
  uint32_t leases = 0;
  uint32_t device = 0;  // Has the device share.
  Bytes chunk_size, device_share, host_share;
  Bytes host_balloon;  // Slots of the share that the balloon holds.
  std::vector<KindUsage> kinds;
  absl::optional<RankUse> rank_use;  // Absent: it shares no contents with other ranks.
};

// kMaking: its first memory is being made. kLingering: it has no session, and lives on for a time.
// kEnding: its memory is being scrubbed.
enum class JobState : uint8_t { kMaking, kRunning, kLingering, kEnding };

struct JobInfo {
  JobId job;
  uint32_t uid = 0;
  std::string name;
  JobState state = JobState::kMaking;
  uint32_t sessions = 0, chunks = 0;
  uint32_t device = 0;              // Has the device share.
  std::array<Bytes, kTiers> bytes;  // Its shares, by tier.
  Duration age{0};
  Duration lingers_for{0};  // Zero unless it lingers.
  // As in OpenCall, and the last step that is on stable storage.
  uint32_t durable_every = 0;
  uint64_t durable_step = 0;
};

// The sums that a user sees of the jobs and sessions of other users.
struct OthersUse {
  uint32_t sessions = 0, jobs = 0, chunks = 0;
  Bytes device_share, host_share;
};

// A user wrote the bytes to a drive in ten minutes that began at `at`.
struct PastWrites {
  Instant at;
  uint32_t uid = 0;
  Bytes bytes;
};

// A drive of the SSD pool: one of its directories.
struct SsdDrive {
  Bytes per_day;  // The most that is written to it in 24 hours. Zero: no budget.
  // Writes of earlier daemons: whether there were any, their bytes, and those of the last 24 hours.
  bool was_used = false;
  Bytes written;
  std::vector<PastWrites> last_day;
};

// DriveWrites counts the bytes written to a drive, and says whether a write waits for its budget.
struct DriveWrites {
  Bytes per_day;  // As in SsdDrive.
  Bytes written, last_day;
  bool is_awaited = false;  // The next write waits for the budget of this drive.
};

// A budget of writes to SSD: that of a drive, of a quota, or else of each user.
struct DailyBudget {
  Bytes per_day;
  absl::optional<uint32_t> drive;
  std::string quota;  // The name of the quota that sets it; empty: none does.
};

// As DriveWrites, for a user, over all drives.
struct UserWrites {
  uint32_t uid = 0;
  Bytes per_day, last_day;
  uint32_t waiting_chunks = 0;  // They wait for a budget.
  bool is_awaited = false;      // The next one of them waits for the user's own, or a group's.
};

// Counters since the engine began. Every one only grows.
struct Counters {
  uint64_t events = 0, fetches = 0, fetch_hits = 0, evictions = 0, dropped_clean = 0, revokes = 0;
  // Iterations that sessions reported, and those that differed from their prediction.
  uint64_t iterations = 0, iteration_mispredictions = 0;
  // Chunks examined for whether a fetch or step can be admitted, and waiting calls for whether
  // their deadline has passed.
  uint64_t admission_looks = 0;
  // Optimizer steps: parts that were computed, and whole steps that were committed.
  uint64_t step_parts = 0, steps_committed = 0, non_finite_gradients = 0;
  uint64_t parts_shared = 0;  // Parts that a rank did not compute, since another one had.
  // Chunks that came to share a content of their user, and those whose bytes differed although
  // their digests did not.
  uint64_t contents_shared = 0, digests_collided = 0;
  uint64_t over_quota = 0;  // Calls in calls_refused that a quota forbids.
  uint64_t transfers_failed = 0, calls_refused = 0, sessions_lost = 0, deadlines_exceeded = 0;
  Bytes host_to_device, device_to_host, ssd_read, ssd_written, zeroed;
  Bytes balloon;  // Memory that balloons released to the machine.
  // Contents on SSD whose bytes were compared with their sums, when a chunk was read and at rest,
  // and how often they were others.
  Bytes verified, scrubbed;
  uint64_t wrong_bytes = 0;
  // Taken from elastic shares for other jobs.
  Bytes device_reclaimed, host_reclaimed, ssd_reclaimed;
  // The stalls of fetches, by what they waited for. A fetch counts once, under the slowest thing
  // that it needed: SSD before device copy before room in a pool.
  // Before these comes an eviction that waited for a budget of writes to SSD.
  Duration stalled_on_ssd{0}, stalled_on_copy{0}, stalled_on_room{0}, stalled_on_budget{0};
};

// Limits. A call beyond one is counted in calls_refused, and refused with an error that names it:
// INVALID_ARGUMENT for what one call may have, otherwise RESOURCE_EXHAUSTED.
struct Limits {
  uint32_t sessions = 256;          // fds: three per session stay far below the usual 1,024.
  uint32_t sessions_per_uid = 64;   // One user cannot take every session.
  uint32_t jobs_per_uid = 256;      // With those that linger: an event may look through all jobs.
  uint32_t chunks_per_call = 4096;  // Replies stay below the 1 MiB message cap.
  uint32_t chunks = 1 << 20;        // 64 TiB at 64 MiB a chunk, 512 MiB of tables at most.
  uint32_t waiting_calls_per_session = 256;
  // Fetches, steps, evictions and offers, and the chunks that they name: one event may examine all
  // of a job.
  uint32_t waiting_calls_per_job = 1024, waiting_chunks_per_job = 1 << 16;
  // One user cannot take the memory and the time of others by means of many jobs.
  uint32_t waiting_calls_per_uid = 4096, waiting_chunks_per_uid = 1 << 17;
  // The second bounds the memory for them: 256 KiB for a session.
  uint32_t remembered_replies_per_session = 128, remembered_chunks_per_session = 1 << 15;
  // Per report. The end of an iteration examines all chunks of the job.
  uint32_t moments_per_call = 4096, uses_per_call = 16384, iteration_ends_per_call = 4;
  // The step manifest of a job; a request is 1 MiB at most.
  uint32_t manifest_bytes = 512 << 10;
  // The manifests of all jobs. The journal (daemon/recovery) has room for them.
  Bytes manifest_bytes_per_uid = MiB(64), manifest_bytes_per_node = MiB(512);
  uint32_t device_regions = kMaxDeviceRegions;
  // All jobs together. A user may have as many as are unused, so that others always find some.
  uint32_t device_regions_per_node = 1 << 15;
  Duration max_wait = std::chrono::minutes(10);  // The longest that a fetch may wait.
  Duration session_lease =
      std::chrono::seconds(60);  // A session that does not renew for this long hangs, and is ended.
  Duration max_time_to_live = std::chrono::hours(24);
  uint32_t quotas = 4096;  // Each job is compared with those of its user.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_INTERFACE_TYPES_H_

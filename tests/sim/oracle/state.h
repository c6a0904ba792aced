// The oracle's knowledge: chunks, sessions, jobs and calls, as the protocol's promises define them,
// in the most naive form. Nothing here knows how the engine does it.
//
// Plain values with lookups; thread-compatible. Sessions and calls that ended stay known, so that
// their ids can be used wrongly.
#ifndef MEMTIDE_TESTS_SIM_ORACLE_STATE_H_
#define MEMTIDE_TESTS_SIM_ORACLE_STATE_H_

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"
#include "tests/sim/config.h"
#include "tests/sim/fakes/fake_node.h"

namespace memtide::sim {

using Codes = std::set<absl::StatusCode>;

// Whether the bytes of a chunk mean anything.
enum class Whole : uint8_t {
  kYes,
  kUndefined,  // Discarded, or never leased and allocated as such: as good as zeros.
  kUnsure,     // Its writer closed in order, without releasing: torn or not, both are permitted.
  kTorn,
};

struct ChunkState {
  JobId job;
  ChunkKind kind = ChunkKind::kOther;
  Stamp content = kZeros;  // The stamp that a reader must see; meaningless when torn.
  Version version;
  Whole whole = Whole::kYes;
  // Where it was last moved down to, unless somebody asked for it since.
  std::optional<Tier> evicted_to;
  bool undefined = false;  // Allocated as such: what is discarded reads as anything.
  bool lasting = false;    // The content was in host memory since it was last written.
  uint64_t wanted = 0;     // The last event that asked for it.
  uint64_t exchanged = 0;  // The last commit that gave it the content of another chunk.
  uint64_t discarded = 0;  // The last event in which a client discarded what it held.
  bool host_home = false;  // Never on SSD, although there is one.
  bool transient = false;  // Ends with the last session of its job, and with the daemon.
};

inline bool MayBeTorn(const ChunkState& chunk) {
  return chunk.whole == Whole::kTorn || chunk.whole == Whole::kUnsure;
}

enum class Phase : uint8_t { kConnected, kOpening, kOpen, kEnding, kEnded };

// A reply that may be asked for again.
struct Remembered {
  uint64_t request_id = 0;
  Event event;
  Reply reply;
};

struct SessionState {
  uint32_t uid = 0;
  Phase phase = Phase::kConnected;
  bool gone = false;  // The connection ended, too.
  bool hung = false;
  JobId job;
  std::map<ChunkId, Lease> leases;
  std::set<RegionId> regions;     // Whose descriptors were sent, and which it has not returned.
  std::set<RegionId> asked_back;  // The part of `regions` that it is to return.
  Instant renewed;  // Last time that the client said, by Renew or Open, that it lives.
  Instant heard;    // Last call of any sort.
  std::deque<Remembered> remembered;                   // As far back as is promised.
  std::map<uint64_t, std::vector<ChunkId>> allocated;  // By request id, ever.
};

struct JobState {
  uint32_t uid = 0;
  uint32_t device = 0;  // Has its device slots.
  std::string name;
  Bytes chunk_size;
  OpenCall opened_by;
  uint32_t slots[kTiers] = {};
  uint32_t max_chunks = 0;
  std::set<RegionId> regions;
  std::set<RegionId> leaving;  // To be returned, or being dropped; they still exist.
  MemoryKind device_memory = MemoryKind::kSharedMemory;
  uint32_t most_host_homes = 0;      // Chunks that had one at once.
  uint64_t resized = 0, shrunk = 0;  // The last events that did.
  bool grew = false;                 // The last time that it was resized.
  bool lacks_device_slots = false;   // Some could not be made, so its share is below slots[0].
  std::set<SessionId> sessions;      // Open ones.
  uint64_t published = 0;            // The last committed step, and its manifest.
  std::string manifest;
  // The contents that steps made and that were not published: the chunk whose new content is in the
  // other.
  std::map<ChunkId, ChunkId> stepped;
  Duration time_to_live{0};
  std::optional<Instant> left;  // When the last session ended.

  // Whether others' needs may make its share of host memory and SSD smaller. One who asked for a
  // size may have joined a job whose maker did not, and died while it opened.
  bool IsElastic() const { return opened_by.elastic && slots[2] != 0; }
  // The same of its device share. slots[0] is then the limit of the share.
  bool HasElasticDevice() const {
    return opened_by.elastic && opened_by.device_share.IsZero() && slots[0] != 0 &&
           (slots[1] != 0 || slots[2] != 0) && device_memory == MemoryKind::kCudaDescriptor;
  }
  // Whether its time has passed: it ends at the next tick, if it has not yet.
  bool IsLate(Instant now) const { return left && now >= *left + time_to_live; }
};

// Whether a region of the device tier is on the job's device. True for others.
inline bool IsOnDeviceOf(const JobState& job, const Region& region) {
  return region.pool.tier != Tier::kDevice || region.pool.device == job.device;
}

struct Call {
  Event event;
  std::optional<SessionId> session;
  uint64_t event_number = 0;  // The event that brought it,
  Instant arrived;            // and when.
  Instant deadline;
  Codes permitted;       // As of the call; what happens while it waits adds to it.
  bool at_once = false;  // Must be answered in the step that asks.
  bool runs = false;     // A step, whose arithmetic has begun.
  uint64_t faults_before = 0;
};

// A step, or a part of one that a client computes, that runs.
struct RunningStep {
  CallId call;
  JobId job;
  std::vector<ChunkId> chunks;
  std::vector<Stamp> read;  // The stamps of the first chunks; the others are written.
  uint64_t number = 0;
};

struct State {
  explicit State(const Config& config) : config(config) {}

  const Config& config;
  Instant now;
  uint64_t events = 0;  // So far.
  Bytes written_to_ssd;
  bool draining = false;
  uint64_t faults = 0;        // Failures that the fake node reported so far.
  uint64_t makes_failed = 0;  // The part of `faults` in which memory could not be made.
  std::map<SessionId, SessionState> sessions;
  std::map<JobId, JobState> jobs;  // Open or lingering.
  std::map<ChunkId, ChunkState> chunks;
  std::map<CallId, Call> calls;  // Waiting.
  std::map<StepId, RunningStep> steps;
  std::map<PartKey, RunningStep> parts;
  std::set<Stamp> of_parts;  // All that clients have computed.
  // Steps and parts that this daemon counts as computed.
  uint64_t step_parts = 0, non_finite_gradients = 0;
  std::set<JobId> without_home;    // Recorded without memory for chunks: a restart gives them up.
  std::set<ChunkId> ended_chunks;  // Freed, or of ended jobs.
  std::vector<PoolUsage> pools;    // As of the last Inspect; none: before the first.
  std::set<RegionId> dropping;     // Regions of whatever job.
  // Host regions that the processes of ended sessions may still write to.
  std::set<RegionId> exposed;
  // Jobs that have lost, in this event, a session whose process may still write to their memory.
  std::set<JobId> unsafe_jobs;

  // Free in this pool as of the last Inspect.
  Bytes Free(Pool pool) const;
  // The pool of the tier from which an Open would get its share.
  Pool PoolFor(const OpenCall& open, Tier tier) const;
  const SessionState* FindSession(SessionId session) const;
  bool IsOpen(SessionId session) const;
  // Whether an Open of the job has waited since before the job's time passed: then it does not end.
  bool IsAwaited(const JobState& job) const;
  // Null unless the session is open.
  const JobState* JobOf(SessionId session) const;
  // Whether the chunk exists and the session may name it.
  bool Owns(SessionId session, ChunkId chunk) const;
  // Sessions that hold a lease on the chunk.
  std::vector<SessionId> Holders(ChunkId chunk) const;
  bool LeasedByOther(SessionId session, ChunkId chunk, bool writers_only) const;
  // Whether a fetch, step or part waits for the chunk or runs; only those of `by`, if given.
  bool WaitedFor(ChunkId chunk, std::optional<SessionId> by = std::nullopt) const;
  bool WaitedForByOther(SessionId session, ChunkId chunk) const;
  // Whether a step or part that runs reads or writes the chunk; writes it, if `written`.
  bool IsStepped(ChunkId chunk, bool written) const;
  // Whether an evict of the chunk waits.
  bool Evicted(ChunkId chunk) const;
  // Whether the session has a part of this number that waits or runs.
  bool HasPart(PartKey part) const;
  // Fetches, steps and evicts of the session that wait, and parts that it computes.
  uint32_t WaitingCalls(SessionId session) const;
  bool AllocationsWait() const;
  // Chunks of the job with a lease at the tier.
  std::set<ChunkId> LeasedAt(JobId job, Tier tier) const;
  // Lowest tier that the node has.
  Tier HomeTier() const;
  // Whether transient chunks may have their home in host memory, above SSD.
  bool HasHostHomes() const;
  uint32_t HostHomes(JobId job) const;
  bool IsTransient(ChunkId chunk) const;
};

// The parts that calls have in common; null where an event has none.
const CallId* CallOf(const Event& event);
const SessionId* SessionOf(const Event& event);
const std::vector<ChunkId>* ChunksOf(const Event& event);
// Zero where the event has none.
uint64_t RequestIdOf(const Event& event);
// The same call as one that is sent again.
Event WithCall(Event event, CallId call);

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_ORACLE_STATE_H_

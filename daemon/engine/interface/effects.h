// Effects: what the engine orders. The edges carry effects out, in order, and decide nothing.
#ifndef MEMTIDE_DAEMON_ENGINE_INTERFACE_EFFECTS_H_
#define MEMTIDE_DAEMON_ENGINE_INTERFACE_EFFECTS_H_

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/content_sums.h"
#include "base/content_work.h"
#include "base/memory_kind.h"
#include "daemon/engine/interface/copy_work.h"
#include "daemon/engine/interface/quota.h"
#include "daemon/engine/interface/record.h"
#include "daemon/engine/interface/types.h"

namespace memtide {

// --- Answers ---

struct OpenReply {
  SessionId session;
  JobId job;
  Bytes chunk_size;
  // Slots of the job at each tier; zero: the tier is not there.
  uint32_t device_slots = 0, host_slots = 0, ssd_slots = 0;
  uint32_t device = 0;  // Has the device slots.
  // Most chunks that the job can have.
  uint32_t max_chunks = 0;
  // The lease budget at the lease tier. It leaves slots to early write-back and prefetch.
  uint32_t lease_budget = 0;
  std::vector<RegionId> regions;  // They follow on the fd socket.
  Duration session_lease{0};
  MemoryKind device_memory = MemoryKind::kSharedMemory;  // How it is lent.
  // The job's last committed step, zero if there was none, and its manifest.
  uint64_t committed_step = 0;
  std::string manifest;
};
struct AllocateReply {
  std::vector<ChunkId> chunks;
};
// Chunks at the tier of the session's leases that it is predicted to use next, in that order.
struct ChunksAhead {
  std::vector<ChunkId> reads, writes;
  bool more_come = false;  // Others are on their way.
};
struct FetchReply {
  std::vector<Lease> leases;  // In the order asked.
  bool waited = false;        // For bytes that moved, or for a lease or room.
  // The session's leased chunks with the latest predicted uses, the latest first.
  std::vector<ChunkId> eviction_hints;
  ChunksAhead ahead;
  // The number of hints, from the first on, whose slots others get before their next use.
  uint32_t leaving = 0;
};
inline constexpr size_t kMaxEvictionHints = 32, kMaxChunksAhead = 16;
struct ReportReply {
  ChunksAhead ahead;
};
struct DescribeReply {
  std::vector<ChunkInfo> chunks;
};
struct InspectReply {
  std::vector<PoolUsage> pools;
  std::vector<KindUsage> kinds;  // Over all jobs.
  Counters counters;
  Limits limits;
  // Sessions and chunks that InspectCall.viewer may see.
  std::vector<SessionInfo> sessions;
  std::vector<ChunkInfo> chunks;
  uint32_t next_chunk = 0;  // InspectCall.first_chunk of the next page; 0: this is the last.
  OthersUse others;
  uint32_t session_count = 0, chunk_count = 0, waiting_calls = 0, transfers_in_flight = 0;
  uint64_t remembered_chunks = 0;  // Chunk ids in replies that are kept for clients that ask again.
  bool draining = false, refuses_sessions = false;
  std::vector<JobInfo> jobs;
  std::vector<QuotaUse> quotas;
  std::vector<DriveWrites> drives;  // As EngineOptions::ssd_drives.
  // Users that wrote in the last 24 hours, or wait to: those that InspectCall.viewer may see; how
  // many of all wait for their own budgets; and when they wrote what, by drive.
  std::vector<UserWrites> users;
  uint32_t users_at_budget = 0;
  std::vector<std::vector<PastWrites>> past_writes;
};
struct EndJobReply {
  JobInfo job;  // As it was.
};
// As in trace.proto. Times count from the first moment; chunks are numbers of the job.
struct TracedChunk {
  uint32_t number = 0;
  ChunkId chunk;
  ChunkKind kind = ChunkKind::kOther;
  absl::optional<uint32_t> next_use_in_moments;
};
struct TracedMoment {
  Phase phase = Phase::kOther;
  std::string name;
  Bytes own_device, own_host;
  Duration time{0};
  std::vector<uint32_t> uses;  // Number * 4 + TracedOperation.
};
enum class TracedOperation : uint8_t { kRead, kWrite, kAllocate, kFree };
enum class MoveReason : uint8_t { kDemand, kPrefetch, kVictim, kWriteBack, kRequest };
struct TracedMove {
  uint32_t chunk = 0;
  absl::optional<Tier> from;  // None: zeros.
  absl::optional<Tier> to;    // None: the copy was dropped.
  MoveReason reason = MoveReason::kDemand;
  uint32_t nearer = 0;
  Instant start;
  Duration duration{0};
  uint64_t moment = 0;
  absl::optional<uint32_t> next_use_in_moments;
};
struct TracedStall {
  Instant start;
  Duration duration{0};
  absl::optional<Tier> waited_for;  // None: room. Device: a copy.
  uint32_t chunks = 0;
};
struct TraceReply {
  JobId job;
  Bytes chunk_size;
  uint32_t device_slots = 0, host_slots = 0, ssd_slots = 0;
  std::vector<TracedChunk> chunks;
  std::vector<TracedMoment> moments;
  std::vector<uint32_t> iteration_ends;
  Instant start;              // The time of moments[0].
  uint64_t first_moment = 0;  // The number of moments[0], as in TracedMove::moment.
  std::vector<TracedMove> moves;
  std::vector<TracedStall> stalls;
};
// The part of another rank that writes the same chunks and does not compute the same, and what
// differs: the work, or the bytes of some chunks that are read (their numbers in the call).
struct PartDifference {
  uint32_t rank = 0;
  bool work = false;
  std::vector<uint32_t> reads;
};
struct PartReply {
  // Where the session computes the part, in the order of the chunks that it named. Empty otherwise.
  std::vector<MemoryPlace> places;
  // Another rank has made the part: the chunks have its results, and there is no part to be ended.
  bool made = false;
  // The chunks that are read whose digests are needed first: no part has begun.
  std::vector<uint32_t> unknown_reads;
  absl::optional<PartDifference> difference;  // Beside `places`.
};
struct OfferReply {
  // Chunks, by their number in the call: those that share a content now, and those that would if
  // the session had no lease on them.
  std::vector<uint32_t> shared, leased;
};
struct ResizeReply {
  uint32_t device_slots = 0, lease_budget = 0;  // As in OpenReply.
};
struct Reply {
  CallId call;
  absl::Status status;
  // monostate for errors and for calls that answer nothing.
  std::variant<std::monostate, OpenReply, AllocateReply, FetchReply, DescribeReply, InspectReply,
               ResizeReply, TraceReply, PartReply, OfferReply, EndJobReply, ReportReply>
      value;
};

// --- To clients, over the fd socket ---

// Passes a region's descriptor.
struct SendRegion {
  SessionId session;
  RegionId region;
};
// The session must unmap a device region and then send ReturnRegionsCall: no lease is or will be in
// it.
struct SendRegionGone {
  SessionId session;
  RegionId region;
  uint32_t device_slots = 0, lease_budget = 0;  // The new values of the job.
};
// The new lease budget of the session (see OpenReply), of `slots` slots at the lease tier. It may
// have `most` leases in use at once.
struct SendLeaseBudget {
  SessionId session;
  uint32_t slots = 0, lease_budget = 0, most = 0;
};
// Requests the release of leases: of `chunks`, which another session wants, and of `count` more of
// the client's choice, whose room is needed. The client need not comply.
struct Revoke {
  SessionId session;
  uint32_t count = 0;
  std::vector<ChunkId> chunks;  // At most kMaxRevokedChunks.
};
inline constexpr size_t kMaxRevokedChunks = 256;
// Ends the connection. ClientGone follows.
struct CloseSession {
  SessionId session;
  absl::Status reason;
};

// --- To the log ---

// Twice the SSD did not return the bytes of a content that were written there: others, or none.
struct BadCopyFound {
  JobId job;
  std::string job_name;
  ChunkId chunk;
  // Another copy is valid, which is written to the SSD again.
  bool has_other_copy = false;
  absl::Status what;  // DATA_LOSS; says where.
};

// Evictions of a user's chunks to SSD wait for a budget. Emitted once an hour for a user.
struct WritesWait {
  uint32_t uid = 0;
  DailyBudget budget;
};

// Transfers of a job failed. Emitted at the first one, and then for all of a minute at a time.
struct TransfersFail {
  JobId job;
  std::string job_name;
  uint64_t count = 0;  // Since the last report.
  absl::Status last;   // Names the chunk, and says what failed.
};

// An iteration of a job differed from its prediction. Emitted for the mispredictions number 1, 2,
// 4, 8 and so on of a job, so that a job that never repeats itself does not fill the log.
struct Misprediction {
  JobId job;
  std::string job_name;
  uint64_t mispredictions = 0;  // The count of the job so far.
  uint64_t iteration = 0;       // Its number, from one on.
  // Uses in the iteration; uses predicted, zero without a prediction; and uses that came in the
  // predicted order.
  uint32_t uses = 0, expected = 0, as_expected = 0;
  bool remembered =
      false;  // The access predictor records the iteration, and predicts it from now on.
};

// The machine is short of memory, and balloons inflate; or the shortage is over, and all balloons
// are empty.
struct MachineShort {
  bool begins = false;
  Bytes available, reserve;
};

// Slots that an ended session had leased are lent again although its process may live on.
struct LentUnderProcess {
  SessionId session;
  uint32_t slots = 0;
};

// There is no memory for copies of host regions to which a process that is no session any more may
// still write: the job goes on with these regions.
struct RegionsStayExposed {
  JobId job;
  std::string job_name;
  absl::Status why;
};

// A job of the previous daemon could not be restored, or not at its last step. Its memory is
// dropped.
struct JobLost {
  JobId job;
  std::string job_name;
  uint64_t committed_step = 0;
  absl::Status why;
  bool is_saved = false;  // Its snapshot stays on stable storage, for the next daemon.
  // The step of the snapshot from which it was restored instead; nullopt: it was not.
  absl::optional<uint64_t> goes_on_at;
};

// --- To the journal, which outlives the daemon ---

// The new state of what an event changed in jobs that outlive the daemon. Comes before all other
// effects of its event, and must be stored, whole or not at all, before those are carried out.
struct Record {
  std::vector<JobRecord> jobs;
  std::vector<JobId> ended;
  std::vector<ChunkRecord> chunks;
  std::vector<uint32_t> freed;  // The low 32 bits of their ids.
};

// --- To the mover ---
//
// `job` says for which job the work is done. The mover serves jobs in turn.

struct MakeRegion {
  RegionId region;
  Pool pool;                                      // A device's, or the host's.
  uint32_t uid = 0;                               // The tenant: no region ever has two.
  Bytes size, slot;                               // Whole slots of that size.
  MemoryKind memory = MemoryKind::kSharedMemory;  // How it will be lent.
  bool persistent = false;                        // The region outlives the daemon.
  bool read_only = false;                         // Clients may only read it.
  // The device that the job uses, if the region is host memory and the job uses one.
  absl::optional<uint32_t> near_device;
  JobId job = JobId();
  // A region of host memory, of the same size and slots, that this one is a copy of. Nothing but
  // processes of ended sessions writes to it meanwhile.
  absl::optional<RegionId> copy_of;
};
struct DropRegion {
  RegionId region;
  JobId job = JobId();
};
// Returns the pages of an empty slot of a host region to the machine, until PopulateSlot fills the
// slot with zeros.
struct ReleaseSlot {
  MemoryPlace place;
  Bytes size;
  JobId job = JobId();
};
struct PopulateSlot {
  MemoryPlace place;
  Bytes size;
  JobId job = JobId();
};
// Files that can hold `size` without ever failing for lack of space.
struct MakeStore {
  StoreId store;
  Bytes size;
  bool persistent = false;  // The store outlives the daemon.
  JobId job = JobId();
};
struct DropStore {
  StoreId store;
  JobId job = JobId();
};
// Puts what was written to the job's stores on stable storage, and then the snapshot, in place of
// the job's last one: whole or not at all, whatever ends meanwhile. One at a time of each job. The
// engine keeps the snapshot, too, until it knows that it is saved.
struct SaveSnapshot {
  std::shared_ptr<const Snapshot> snapshot;
};
// The job ends. Comes before its stores are dropped.
struct DropSnapshot {
  JobId job;
  std::vector<StoreId> stores;  // All of the job.
};
struct StartTransfer {
  enum class Kind : uint8_t {
    kHostToDevice,
    kDeviceToHost,
    kSsdToHost,
    kHostToSsd,
    kZero,
    // Changes neither copy. TransferDone has DATA_LOSS if they differ.
    kCompareDeviceWithHost,
    // Reads `size` bytes from `store` and compares their sums; no memory changes.
    kVerifySsd,
  };
  TransferId transfer;
  Kind kind = Kind::kZero;
  // kHostToDevice, kDeviceToHost, kCompareDeviceWithHost: both. kSsdToHost: memory `to`, store.
  // kHostToSsd: memory `from`, store. kZero: `to`.
  MemoryPlace from, to;
  StorePlace store;
  Bytes size;
  JobId job;
  // A call waits for it. If one begins to wait later, an AwaitTransfer says so.
  bool awaited = false;
  // kHostToSsd: TransferDone has the sums of what was written.
  bool make_sums = false;
  // kSsdToHost, kVerifySsd: the sums of the bytes as they were written. Empty: not known, or not to
  // be compared.
  ContentSums sums;
};
// A call waits for the transfer from SSD, or for its end, which was started for none. It may have
// ended.
struct AwaitTransfer {
  TransferId transfer;
};

// Runs the work over the chunks at these places of host memory, of `size` bytes each: copies of
// bytes, or what is done with contents.
struct StartStep {
  StepId step;
  std::vector<MemoryPlace> chunks;
  Bytes size;
  std::shared_ptr<const CopyWork> work;  // Null: `contents` is not.
  std::shared_ptr<const ContentWork> contents;
  JobId job = JobId();
};

using Effect = std::variant<Reply, SendRegion, SendRegionGone, Revoke, CloseSession, Misprediction,
                            MakeRegion, DropRegion, MakeStore, DropStore, StartTransfer, StartStep,
                            JobLost, Record, SendLeaseBudget, MachineShort, ReleaseSlot,
                            PopulateSlot, LentUnderProcess, RegionsStayExposed, AwaitTransfer,
                            BadCopyFound, WritesWait, SaveSnapshot, DropSnapshot, TransfersFail>;

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_INTERFACE_EFFECTS_H_

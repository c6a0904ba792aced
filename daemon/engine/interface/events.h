// Every event of the engine carries values only, already decoded and bounded by the edge that made
// it; the engine checks meaning (ownership, limits, states).
//
// Calls come with a CallId that the edge chose; the engine answers each exactly once, now or later,
// with a Reply effect, also when the session ends or the deadline passes.
#ifndef MEMTIDE_DAEMON_ENGINE_INTERFACE_EVENTS_H_
#define MEMTIDE_DAEMON_ENGINE_INTERFACE_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/content_sums.h"
#include "base/content_work.h"
#include "base/digest.h"
#include "base/memory_kind.h"
#include "daemon/engine/interface/copy_work.h"
#include "daemon/engine/interface/quota.h"
#include "daemon/engine/interface/record.h"
#include "daemon/engine/interface/types.h"

namespace memtide {

// --- From the fd socket ---

// A process connected; identity is the kernel's. Answered by CloseSession when a limit is reached.
struct ClientConnected {
  SessionId session;
  uint32_t uid = 0;
  int32_t pid = 0;
  std::vector<uint32_t> groups = {};  // As in Owner.
};
// The connection ended (exit, kill, close). Leases end; a session never comes back.
struct ClientGone {
  SessionId session;
  bool process_lives = false;  // The daemon has ended the connection, not the process.
};

// The session ended without a CloseCall, and nothing that its process left on the device runs any
// more: the process is gone, or kQuietWithin has passed. Sessions that left nothing: ignored.
struct ClientQuiet {
  SessionId session;
  bool process_lives = false;  // Or that cannot be known.
};

// --- Calls ---
//
// Cost: about how much the engine looks at, in chunks. The fair queue charges it to the user.

// The end of an iteration, and a trace, concern all chunks of the job.
inline constexpr uint64_t kCostOfAllChunks = 8192;

inline uint64_t CountUses(const std::vector<MomentReport>& moments) {
  uint64_t uses = moments.size();
  for (const MomentReport& moment : moments) {
    uses += moment.uses.size() + (moment.ends_iteration ? kCostOfAllChunks : 0);
  }
  return uses;
}

// Binds the session to a job: creates it, or joins the running or lingering job of the same name
// and uid (then the chunk size must be equal or zero, and shares are ignored). Answered with
// OpenReply once memory is there.
struct OpenCall {
  CallId call;
  SessionId session;
  std::string job_name;  // Empty: a job of this session alone.
  // The sessions of one training, one for each rank, which make each step part once and commit
  // together. Zero ranks: the session has no such others. With a time to live, a session has the
  // chunks and the last commit of the session that was its rank before.
  uint32_t rank = 0, ranks = 0;
  Bytes chunk_size;  // A multiple of kChunkAlignment, at most kMaxChunkSize.
  // The device that lends the device share. nullopt: the one with most free memory, of several such
  // the first.
  absl::optional<uint32_t> device;
  // Shares of the pools. Zero: all that is free. Rounded down to whole chunks.
  Bytes device_share, host_share, ssd_share;
  // Host and SSD shares of zero follow what jobs need. Ignored by nodes without SSD.
  bool elastic = false;
  // How long the chunks outlive the last session.
  Duration time_to_live{0};
  // How device memory is to be lent; nullopt: as the node does it best. Ignored by nodes whose
  // device lends shared memory.
  absl::optional<MemoryKind> device_memory;
  // The commit of each step that is a multiple of it is answered when the step is on stable storage
  // (records/snapshots.cc), so that the job outlives the machine. Zero: none is, or, for a session
  // that joins, as it was. Needs a name, a time to live and SSD.
  uint32_t durable_every = 0;
  // How many sessions train alike, this one included, and have contents in common.
  uint32_t alike = 1;
  // The sessions of one user in a group are the ranks of a training which have a named job each,
  // `group_ranks` of them: their commits can be one event (CommitCall.with_all_ranks). Empty: none.
  std::string group;
  uint32_t group_rank = 0, group_ranks = 0;
  uint64_t Cost() const { return 0; }
};
struct RenewCall {
  CallId call;
  SessionId session;
  uint64_t Cost() const { return 0; }
};
struct CloseCall {
  CallId call;
  SessionId session;
  uint64_t Cost() const { return 0; }
};
// New chunks, all or none. While they hold nothing they read as zeros, or if `undefined` as
// anything of the job's: then nothing is done before they are first written.
struct AllocateCall {
  CallId call;
  SessionId session;
  uint64_t request_id = 0;  // Same id again: same reply, one effect.
  uint32_t count = 0;
  ChunkKind kind = ChunkKind::kOther;
  bool undefined = false;
  // The chunks end with the last session of the job, and with the daemon.
  bool transient = false;
  // The lowest tier that the chunks ever reach: the job's lowest tier, or host memory above an SSD
  // tier, for transient chunks that are leased at the device. nullopt: the lowest.
  absl::optional<Tier> home;
  uint64_t Cost() const { return count; }
};
// Leases for all of `chunks`, at `tier` (device or host), after `releases` has been given back.
// A chunk already leased by the session keeps its lease (upgraded to write if asked).
struct FetchCall {
  CallId call;
  SessionId session;
  Tier tier = Tier::kDevice;
  Access access = Access::kRead;
  std::vector<ChunkId> chunks;
  std::vector<ChunkId> releases;  // Not leased: ignored, so that a retry is harmless.
  bool wait = true;               // False: UNAVAILABLE unless every chunk is there now.
  Duration deadline{0};           // Zero: the limit max_wait.
  // The session's uses since its last report, up to this call's chunks. Chunks that are not the
  // job's are ignored.
  std::vector<MomentReport> moments;
  uint64_t Cost() const { return chunks.size() + releases.size() + CountUses(moments); }
};
// Only the moments of a FetchCall.
struct ReportCall {
  CallId call;
  SessionId session;
  std::vector<MomentReport> moments;
  uint64_t Cost() const { return CountUses(moments); }
};
struct ReleaseCall {
  CallId call;
  SessionId session;
  uint64_t request_id = 0;
  std::vector<ChunkId> chunks;  // FAILED_PRECONDITION when one is not leased: nothing is released.
  uint64_t Cost() const { return chunks.size(); }
};
// Ends the session's leases on `chunks`, whatever the answer, moves them down to `tier` (host or
// ssd) and answers when they are there.
struct EvictCall {
  CallId call;
  SessionId session;
  Tier tier = Tier::kSsd;
  std::vector<ChunkId> chunks;
  uint64_t Cost() const { return chunks.size(); }
};
// Ends chunks and their content. Own leases end with them; others' refuse it.
struct FreeCall {
  CallId call;
  SessionId session;
  uint64_t request_id = 0;
  std::vector<ChunkId> chunks;
  uint64_t Cost() const { return chunks.size(); }
};
// Ends the content of chunks and keeps the chunks, which read as anything until they are written.
// Own leases end with the content; others', and calls that are admitted, refuse it. The predictor
// does not learn it: the chunks' next uses stay predicted.
struct DiscardCall {
  CallId call;
  SessionId session;
  uint64_t request_id = 0;
  std::vector<ChunkId> chunks;
  uint64_t Cost() const { return chunks.size(); }
};
// The session will not write these chunks soon: those whose bytes another session of the user has
// offered, too, come to share one content (sharing/offers.cc). Answered when all that can be shared
// now is shared. A chunk that is leased, or used by a call, stays as it is.
struct OfferCall {
  CallId call;
  SessionId session;
  std::vector<ChunkId> chunks;
  Duration deadline{0};  // Zero: the limit max_wait.
  // The chunks are offered again by the engine itself whenever they were written. Answered at once.
  bool repeats = false;
  uint64_t Cost() const { return chunks.size(); }
};
// New chunks with the content of `chunks`, of which no byte is copied: all hold it in common until
// one of them is written (sharing/duplicates.cc). Answered with AllocateReply: one chunk for each
// of `chunks`, in their order, then the next copies of them.
struct DuplicateCall {
  CallId call;
  SessionId session;
  uint64_t request_id = 0;
  std::vector<ChunkId> chunks;
  uint32_t copies = 1;   // New chunks for each of `chunks`.
  Duration deadline{0};  // Zero: the limit max_wait. For the chunks to come to host memory.
  uint64_t Cost() const { return chunks.size() * (uint64_t{1} + copies); }
};
struct DescribeCall {
  CallId call;
  SessionId session;
  std::vector<ChunkId> chunks;
  uint64_t Cost() const { return chunks.size(); }
};

// Changes the job's share of its device's pool; see Resize in the protocol. Answered with
// ResizeReply when memory that is too much has been given back.
struct ResizeCall {
  CallId call;
  SessionId session;
  Bytes device_share;    // Rounded down to whole chunks.
  Duration deadline{0};  // Zero: the limit max_wait.
  uint64_t Cost() const { return 0; }
};
// The session unmapped regions that SendRegionGone named. Other regions are ignored.
struct ReturnRegionsCall {
  CallId call;
  SessionId session;
  std::vector<RegionId> regions;
  uint64_t Cost() const { return 0; }
};

// PartContents identifies the computation of a part, for the ranks of a job that may want the same
// one. `work`: a digest of the computation, without the bytes. Its high half is of the elements
// alone (which parameters, and where in the chunks each operand is), and the low half of the
// operation with its options and step, so that it can be said which of them differs between two
// ranks. `reads`: by number of a chunk that is read, a digest of the bytes that the part reads of
// it. One that is not set is asked for where ranks do not share the chunk's content.
struct PartContents {
  Digest work;
  std::vector<Digest> reads;
};
// One step part: reads the first `reads` of `chunks` and creates new content in the others, in host
// memory. No session sees the new content as the state of the job before the commit. Nothing that
// is read changes, so that the same part may be computed again.
struct StepCall {
  CallId call;
  SessionId session;
  std::vector<ChunkId> chunks;
  uint32_t reads = 0;
  // Over `chunks`, by their number: answered when it is done. Null: the session computes the part,
  // in the memory that PartReply names, until its EndPartCall with this number, or its end.
  std::shared_ptr<const CopyWork> work;
  uint64_t part = 0;  // Without work: not zero, and not that of another part of the session.
  // Without work, in a job of several ranks: the part is made once for all that want the same.
  absl::optional<PartContents> contents;
  Duration deadline{0};               // Zero: the limit max_wait.
  std::vector<MomentReport> moments;  // As in FetchCall.
  uint64_t Cost() const {
    const uint64_t copies = work == nullptr ? 0 : work->copies.size();
    return chunks.size() + copies + CountUses(moments);
  }
};
// Ends a part that the session computes. `computed`: the chunks that it writes hold the new
// content; otherwise they hold nothing. No such part: ignored, so that a retry is harmless.
struct EndPartCall {
  CallId call;
  SessionId session;
  uint64_t part = 0;
  bool computed = false;
  uint64_t non_finite_gradients = 0;  // Infinite and NaN elements, if the session counted them.
  uint64_t Cost() const { return 0; }
};
// Commits step number `step` of the job: in one event, chunks[i] gets the content of shadows[i].
struct CommitCall {
  CallId call;
  SessionId session;
  uint64_t step =
      0;  // The last committed step + 1. The last step again is answered without effect.
  std::vector<ChunkId> chunks, shadows;
  std::vector<Version> versions;  // `chunks` must have them still. Empty: any will do.
  // Whether shadows[i] gets the old content of chunks[i], instead of none.
  bool keep_old_content = false;
  // Where ranks are kept (Job::keeps_ranks), and in a group: waits for such commits of all other
  // ranks, and is one event with them. Ignored elsewhere.
  bool with_all_ranks = false;
  std::string manifest;  // In every OpenReply of the job, or of its rank, from now on.
  uint64_t Cost() const { return chunks.size() + shadows.size(); }
};

// --- Operators and metrics ---

struct InspectCall {
  CallId call;
  // The uid whose jobs are shown; of all others only sums. Absent: all jobs are shown.
  absl::optional<uint32_t> viewer;
  // Whose quotas bound what a job could have (PoolUsage::obtainable). Absent: none do.
  absl::optional<Owner> caller;
  bool sessions = false;
  bool jobs = false;  // And quotas.
  // Lists chunks from this index on, max_chunks at most; for paging.
  uint32_t first_chunk = 0, max_chunks = 0;
  bool past_writes = false;  // InspectReply::past_writes is wanted.
  uint64_t Cost() const { return max_chunks; }
};
// The uses and movements that the engine recorded for a job.
struct TraceCall {
  CallId call;
  absl::optional<uint32_t> viewer;  // As in InspectCall: jobs of others do not exist.
  JobId job;                        // Zero: the only one that is open.
  uint64_t Cost() const { return kCostOfAllChunks; }
};
enum class DrainMode : uint8_t { kAll, kSessions, kEnd };
// Refuses new sessions from now on. kAll: allocations and resizes, too, and is answered when
// nothing is in flight. kEnd: ends kSessions.
struct DrainCall {
  CallId call;
  DrainMode mode = DrainMode::kAll;
  uint64_t Cost() const { return 0; }
};
// Ends a job and its sessions. Answered with EndJobReply; the memory is dropped afterwards.
struct EndJobCall {
  CallId call;
  absl::optional<uint32_t> viewer;  // As in InspectCall: jobs of others do not exist.
  JobId job;
  uint64_t Cost() const { return 0; }
};
// From now on these quotas hold, and no others. Ignored if one with a larger number came before.
struct SetQuotasCall {
  CallId call;
  uint64_t number = 0;
  std::vector<Quota> quotas;  // One for each subject.
  uint64_t Cost() const { return 0; }
};

// --- From the mover ---

struct TransferDone {
  TransferId transfer;
  absl::Status status;
  ContentSums sums;  // As StartTransfer::make_sums asks.
  // `status` is DATA_LOSS, because the sums of what was read are not those of what was written.
  bool wrong_bytes = false;
};
struct RegionMade {
  RegionId region;
  absl::Status status;
};
struct RegionDropped {
  RegionId region;
};
struct SlotReleased {
  MemoryPlace place;
};
struct SlotPopulated {
  MemoryPlace place;
  absl::Status status;
};
struct StoreMade {
  StoreId store;
  absl::Status status;
  std::vector<uint32_t> stripes;  // As JobRecord::store_stripes has them; empty: evenly.
};
struct StoreDropped {
  StoreId store;
};

// The job's snapshot is on stable storage, in place of the last one. Not OK: the last one is.
// UNKNOWN: one of them is.
struct SnapshotSaved {
  JobId job;
  absl::Status status;
};

struct StepDone {
  StepId step;
  absl::Status status;
  ContentResult contents;  // Empty without such work.
};

// The device is lost, and why: what its memory holds is lost, and so are the contexts of the
// processes that use it. OK: it can be used again, and regions that are there are so with other
// memory. Comes before the end of each transfer that the loss has failed.
struct DeviceState {
  uint32_t device = 0;
  absl::Status state;
};

// The first event after a restart. The recorded jobs linger, each with its whole time to live. Jobs
// that no longer fit the node, or whose records contradict each other, are dropped (JobLost).
// REQUIRES: all memory that the records name exists; there is one record for each chunk and job,
// and one chunk for each index (the low 32 bits of its id).
// `snapshots`: those of all durable jobs. They restore the jobs that have no record, because the
// machine ended with the last daemon.
struct Restore {
  std::vector<JobRecord> job_records;
  std::vector<ChunkRecord> chunk_records;
  std::vector<Snapshot> snapshots = {};
  // The largest numbers of jobs and segments that files on the SSD have: no new one gets them.
  uint64_t last_job = 0;
  uint32_t last_segment = 0;
};

// Memory that other programs could allocate now without any being taken from the pools. `limit`: of
// what the daemon and its jobs may use together; zero: the machine is the limit.
struct HostMemory {
  Bytes available;
  Bytes limit = Bytes(0);
};

// Time passed. At least every 100 ms while anything waits.
struct Tick {};

using Event =
    std::variant<ClientConnected, ClientGone, OpenCall, RenewCall, CloseCall, AllocateCall,
                 FetchCall, ReleaseCall, EvictCall, FreeCall, DescribeCall, ReportCall, ResizeCall,
                 ReturnRegionsCall, InspectCall, TraceCall, DrainCall, TransferDone, RegionMade,
                 RegionDropped, StoreMade, StoreDropped, Tick, StepCall, CommitCall, StepDone,
                 Restore, HostMemory, SlotReleased, SlotPopulated, ClientQuiet, DiscardCall,
                 EndPartCall, OfferCall, DeviceState, EndJobCall, SetQuotasCall, SnapshotSaved,
                 DuplicateCall>;

// The index of a kind of event in Event.
template <typename OneEvent, size_t index = 0>
constexpr size_t IndexInEvent() {
  if constexpr (std::is_same_v<OneEvent, std::variant_alternative_t<index, Event>>)
    return index;
  else
    return IndexInEvent<OneEvent, index + 1>();
}
template <typename OneEvent>
inline constexpr size_t kKindOf = IndexInEvent<OneEvent>();

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_INTERFACE_EVENTS_H_

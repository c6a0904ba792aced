// DaemonSession: the interface to the daemon: one session, its calls and its events.
//
// GrpcDaemonSession talks to a real daemon; tests use FakeDaemonSession, which lends its own memfd
// in a few slots, so that eviction really moves bytes. Lists of chunks may have any length: an
// implementation splits them at the daemon's limits.
//
// Thread safety: after Open, all methods may be called from any thread. Each blocks until the
// daemon replied, so no caller may hold a lock. Errors have the daemon's code and message; once the
// session is lost, every call returns UNAVAILABLE with the reason.
#ifndef MEMTIDE_CLIENT_RPC_DAEMON_SESSION_H_
#define MEMTIDE_CLIENT_RPC_DAEMON_SESSION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/memory_kind.h"
#include "client/memory/place.h"
#include "client/memory/region.h"
#include "client/rpc/daemon_limits.h"
#include "client/rpc/moment.h"
#include "client/rpc/step.h"
#include "memtide/v1/session.pb.h"

namespace memtide::client {

// Leases that the daemon wants back as soon as their uses end: those of `chunks`, and `additional`
// more, the longest idle first.
struct Revocation {
  std::vector<ChunkId> chunks;
  uint32_t additional = 0;
};

// The job's share of the device pool after a change, in slots, and the leases that a session may
// hold.
struct DeviceShare {
  uint32_t device_slots = 0;
  uint32_t lease_budget = 0;
};

// The leases that a session should hold at most while the job's share has `slots` slots at the tier
// of the leases. Leases in use may exceed `leases`, up to `max_in_use`; zero means no such limit.
struct LeaseBudget {
  uint32_t slots = 0;
  uint32_t leases = 0;
  uint32_t max_in_use = 0;
};

// Receives unsolicited events from the daemon. The session calls it from one thread of its own,
// between the beginning of Open and the end of Close. Implementations must return soon and must not
// call the session.
class DaemonSessionEvents {
 public:
  virtual ~DaemonSessionEvents() = default;
  // The daemon lent a region. Leases may name it until RegionGone or the end of the session.
  virtual void RegionArrived(RegionId id, Region region) = 0;
  // The daemon takes a region back. No lease names it any more; the client must release it and then
  // call ReturnRegions. `share` is what the job has left.
  virtual void RegionGone(RegionId id, const DeviceShare& share) = 0;
  virtual void RevokeRequested(const Revocation& revocation) = 0;
  virtual void LeaseBudgetChanged(const LeaseBudget& budget) = 0;
  // The session ended. No further event follows, and every call fails with `reason` from now on.
  virtual void Lost(const absl::Status& reason) = 0;
};

// Where a daemon listens, and the name that this process gives itself there.
struct DaemonAddress {
  std::string socket_dir;  // The directory of fd.sock.
  std::string program;     // Shown in listings.
};

// The job as the daemon granted it at Open.
struct Job {
  uint64_t id = 0, session_id = 0;  // In listings. An older daemon does not say the second.
  Bytes chunk_size;
  uint32_t device_slots = 0, host_slots = 0, ssd_slots = 0;
  uint32_t max_chunks = 0;
  uint32_t lease_budget = 0;
  MemoryKind device_memory = MemoryKind::kSharedMemory;
  uint32_t device_number = 0;    // The device that has the device slots, on its node.
  std::string cuda_device_uuid;  // 16 bytes; empty without a GPU.
  // Whether GPU memory may be mapped and unmapped only while the process has no work on the GPU.
  bool cuda_maps_when_idle = false;
  CommittedStep committed;  // Step zero: none.
  DaemonLimits limits;
  bool has_ranks = false;  // The session is one of several ranks, which may share contents.

  // The job's slots at the tier where its chunks are leased.
  uint32_t lease_slots() const { return device_slots > 0 ? device_slots : host_slots; }
};

// Where the bytes of a leased chunk are: `offset` bytes into `region`.
struct Lease {
  ChunkId chunk;
  RegionId region;
  Bytes offset;
};

// Where the chunks of a part are, in the order of its places. Empty if no part has begun.
struct LentPart {
  PartOutcome outcome;
  std::vector<Lease> leases;
};

enum class WaitPolicy : uint8_t { kWait, kNoWait };

struct FetchOptions {
  std::vector<ChunkId> chunks;
  Access access = Access::kRead;
  // Leases that the daemon ends before it grants others. Chunks that are not leased are ignored.
  std::vector<ChunkId> releases;
  WaitPolicy wait_policy = WaitPolicy::kWait;
  Duration deadline{0};         // Zero: the daemon's maximum.
  std::vector<Moment> moments;  // Recorded since the last report.
};

// Chunks that are there and that the program is predicted to use next.
struct ChunksAhead {
  std::vector<ChunkId> reads, writes;
  bool more_come = false;  // Others are on their way: the answer to a later Report names them.
};

struct FetchResult {
  std::vector<Lease> leases;  // In the order of FetchOptions::chunks.
  // Leased chunks in the order in which to release them: the one whose next use is farthest away
  // first.
  std::vector<ChunkId> eviction_hints;
  ChunksAhead ahead;
  size_t leaving = 0;  // As many hints, the first ones: release these leases once they are idle.
};

// The chunks of an offer, by their number: those whose content is shared, and those whose content
// could be if nothing used them.
struct OfferResult {
  std::vector<size_t> shared, leased;
};

class DaemonSession {
 public:
  virtual ~DaemonSession() = default;

  // Connects and opens the job. v1::OpenRequest defines the fields, with two differences: `elastic`
  // is always set, so that host and SSD shares of zero are elastic; and with a chunk size of zero,
  // a new job gets chunks of 1/24 of the host share, at most 1/12 of the device share, and 2 to 64
  // MiB. `events` must outlive Close. REQUIRES: it is the first call.
  virtual absl::StatusOr<Job> Open(const v1::OpenRequest& request, DaemonSessionEvents* events) = 0;
  // Ends the session. No event is delivered after it returned.
  virtual void Close() = 0;

  virtual absl::StatusOr<std::vector<ChunkId>> Allocate(uint32_t count, ChunkKind kind,
                                                        InitialContent initial_content,
                                                        HomeTier home) = 0;
  virtual absl::Status Free(absl::Span<const ChunkId> chunks) = 0;
  // Leases all of the chunks or none.
  virtual absl::StatusOr<FetchResult> Fetch(const FetchOptions& options) = 0;
  // Reports moments without leasing anything.
  virtual absl::StatusOr<ChunksAhead> Report(const std::vector<Moment>& moments) = 0;
  virtual absl::Status Release(absl::Span<const ChunkId> chunks) = 0;
  // Ends the leases on the chunks, even on an error, and moves them to the lowest tier of the node.
  // Returns when they are there.
  virtual absl::Status Evict(absl::Span<const ChunkId> chunks) = 0;
  // Ends the content of the chunks and the leases on them. If a batch fails, those before it are
  // discarded.
  virtual absl::Status Discard(absl::Span<const ChunkId> chunks) = 0;
  // Offers chunks, whose contents come to be shared with other sessions of the user.
  virtual absl::StatusOr<OfferResult> Offer(absl::Span<const ChunkId> chunks) = 0;
  // Offers chunks that the program writes, and others write in the same way: the daemon offers them
  // again whenever they were written.
  virtual absl::Status OfferWhenWritten(absl::Span<const ChunkId> chunks) = 0;
  // New chunks with the content of `chunks`: one for each, in their order, then the next copies.
  // All or none. ABORTED: a chunk is in use.
  virtual absl::StatusOr<std::vector<ChunkId>> Duplicate(absl::Span<const ChunkId> chunks,
                                                         uint32_t copies) = 0;
  // Changes the job's share of the device pool. Shrinking returns when every session of the job has
  // returned its excess memory, or with DEADLINE_EXCEEDED.
  virtual absl::StatusOr<DeviceShare> Resize(Bytes device_share, Duration deadline) = 0;
  // Begins a part that this process computes; `chunks` are those at part.places. Returns where they
  // are in host memory until EndPart, or why none has begun. After an error the part may have
  // begun.
  virtual absl::StatusOr<LentPart> StartPart(const OwnPart& part, absl::Span<const ChunkId> chunks,
                                             const std::vector<Moment>& moments) = 0;
  // Does nothing if no such part has begun.
  virtual absl::Status EndPart(uint64_t id, const PartResult& result) = 0;
  // Each of `chunks` gets the content of the shadow chunk with the same index, all at once.
  // ABORTED: one of the chunks is leased.
  virtual absl::Status Commit(const CommitRequest& commit, absl::Span<const ChunkId> chunks,
                              absl::Span<const ChunkId> shadows) = 0;
  // Returns for each chunk how many write leases and commits it has had.
  virtual absl::StatusOr<std::vector<uint64_t>> Versions(absl::Span<const ChunkId> chunks) = 0;
  // Reports that this process holds nothing of these regions any more. REQUIRES: RegionGone named
  // them.
  virtual absl::Status ReturnRegions(const std::vector<RegionId>& regions) = 0;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_DAEMON_SESSION_H_

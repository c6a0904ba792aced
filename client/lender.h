// Lender: the seam to the daemon, one session of it.
//
// The real one is GrpcLender (two sockets); tests use FakeLender, which lends its own memfds from
// few slots, so that eviction really moves bytes. Every call blocks until the answer is there and
// may be made from any thread; none is made while the caller holds a lock. Errors are the daemon's,
// word for word, or UNAVAILABLE once the session is lost. Batches may be of any length: an
// implementation splits them at the protocol's limit.
#ifndef MEMTIDE_CLIENT_LENDER_H_
#define MEMTIDE_CLIENT_LENDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/memory_kind.h"
#include "client/region.h"
#include "client/step.h"
#include "client/types.h"
#include "client/use_log.h"

namespace memtide::client {

// Leases to be given back as soon as they are not needed: of these chunks, and `others`, oldest
// first.
struct Revocation {
  std::vector<ChunkId> chunks;
  uint32_t others = 0;
};

// What is left to the job after its share of the device pool changed.
struct Resized {
  uint32_t device_slots = 0;
  uint32_t lease_budget = 0;
};

// What happens without being asked for. Called from the lender's own thread, one at a time, between
// Open and the end of Close; must return soon and must not call the lender.
class LenderEvents {
 public:
  virtual ~LenderEvents() = default;
  // Memory that leases will name, until the session ends or the region is gone.
  virtual void RegionArrived(RegionId id, Region region) = 0;
  // No lease names the region any more: it is to be let go, and then returned. The job has `slots`
  // of device memory left.
  virtual void RegionGone(RegionId id, const Resized& left) = 0;
  virtual void RevokeRequested(const Revocation& wanted) = 0;
  // Job::lease_budget from now on; what is in use may exceed it, but not `most_in_use`, unless that
  // is zero.
  virtual void LeaseBudgetChanged(uint32_t leases, uint32_t most_in_use) = 0;
  // The session is over; no other event follows, and every call fails from now on.
  virtual void Lost(const absl::Status& reason) = 0;
};

// Zero means: the default of proto/memtide/v1/session.proto, elastic shares of host memory and SSD,
// and for the chunk size a 24th of the host share and at most a 12th of the device share, 2 to 64
// MiB.
struct JobOptions {
  std::string job_name;
  Bytes chunk_size;
  Bytes device_share, host_share, ssd_share;
  // None: the daemon's choice.
  absl::optional<MemoryKind> device_memory;
  Duration time_to_live{0};  // Of the chunks, after the job's last session.
};

struct Job {
  Bytes chunk_size;
  uint32_t device_slots = 0, host_slots = 0, ssd_slots = 0;
  uint32_t max_chunks = 0;
  uint32_t lease_budget = 0;
  MemoryKind device_memory = MemoryKind::kSharedMemory;
  std::string cuda_device_uuid;  // 16 bytes; empty where device memory is no GPU's.
  Published published;           // By sessions before this one.
};

// Where the bytes of a leased chunk are.
struct Lease {
  ChunkId chunk;
  RegionId region;
  Bytes offset;
};

enum class Patience : uint8_t { kWait, kNoWait };

struct FetchOptions {
  std::vector<ChunkId> chunks;
  Access access = Access::kRead;
  // Given back first. Not leased: ignored.
  std::vector<ChunkId> releases;
  Patience patience = Patience::kWait;
  Duration deadline{0};         // Zero: as long as the daemon allows.
  std::vector<Moment> moments;  // Used since the daemon was told last.
};

struct Fetched {
  std::vector<Lease> leases;  // In the order of FetchOptions::chunks.
  // Of the chunks that are leased, those that the daemon expects to be used last; the last first.
  std::vector<ChunkId> farthest;
};

class Lender {
 public:
  virtual ~Lender() = default;

  // Connects and opens the job. `events` must outlive Close. REQUIRES: the first call.
  virtual absl::StatusOr<Job> Open(const JobOptions& options, LenderEvents* events) = 0;
  // Ends the session. No event is delivered once it returned.
  virtual void Close() = 0;

  virtual absl::StatusOr<std::vector<ChunkId>> Allocate(uint32_t count, ChunkKind kind,
                                                        Unwritten unwritten) = 0;
  virtual absl::Status Free(absl::Span<const ChunkId> chunks) = 0;
  // All or none of the leases.
  virtual absl::StatusOr<Fetched> Fetch(const FetchOptions& options) = 0;
  // Tells what was used, where nothing is wanted.
  virtual absl::Status Report(const std::vector<Moment>& moments) = 0;
  virtual absl::Status Release(absl::Span<const ChunkId> chunks) = 0;
  // Ends leases on them, whatever the answer, moves them to the lowest tier of the node, and
  // returns when they are there.
  virtual absl::Status Evict(absl::Span<const ChunkId> chunks) = 0;
  virtual absl::Status Prefetch(absl::Span<const ChunkId> chunks) = 0;
  // Changes the job's share of the device pool. Shrinking returns when every session has returned
  // what it no longer may have, or DEADLINE_EXCEEDED.
  virtual absl::StatusOr<Resized> Resize(Bytes device_share, Duration deadline) = 0;
  // A part of an optimizer's step, over these chunks; returns when it is done, with the number of
  // gradients that are not finite, if it was to count them.
  virtual absl::StatusOr<uint64_t> Step(const StepPart& part, absl::Span<const ChunkId> chunks,
                                        const std::vector<Moment>& moments) = 0;
  // Each of `chunks` holds what the one of `fresh` in its place held. ABORTED: one is leased.
  virtual absl::Status Publish(const Publication& publication, absl::Span<const ChunkId> chunks,
                               absl::Span<const ChunkId> fresh) = 0;
  // How often each has been opened for writing.
  virtual absl::StatusOr<std::vector<uint64_t>> Versions(absl::Span<const ChunkId> chunks) = 0;
  // Nothing is left here of these regions, which were gone.
  virtual absl::Status ReturnRegions(const std::vector<RegionId>& regions) = 0;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_LENDER_H_

// Job and TierShare: what the engine knows of each. Engine-internal.
#ifndef MEMTIDE_DAEMON_ENGINE_JOB_H_
#define MEMTIDE_DAEMON_ENGINE_JOB_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "base/count.h"
#include "daemon/engine/calls.h"
#include "daemon/engine/chunk.h"
#include "daemon/engine/effects.h"
#include "daemon/engine/job_trace.h"
#include "daemon/engine/member_table.h"
#include "daemon/engine/tier_mark.h"
#include "daemon/engine/types.h"
#include "daemon/engine/waiting_calls.h"
#include "daemon/engine/work_list.h"
#include "daemon/policy/eviction_queue.h"
#include "daemon/policy/job_forecast.h"
#include "daemon/pool/slot_pool.h"

namespace memtide {

// A segment has this size, so that a small job starts at once and a large one does not touch memory
// that it may never need. A segment of larger chunks holds one chunk.
inline constexpr Bytes kSegmentSize = MiB(256);

// What a job has of one pool, and the queues of its chunks at that tier.
struct TierShare {
  // Whole chunks; includes slots that are to be given back.
  Bytes lent;
  // The slots that the job should have. It has fewer where a segment could not be made.
  uint32_t target = 0;
  // `target` of an elastic share (shares.cc) follows the needs of this and other jobs between
  // `guaranteed`, which no other job gets, and `limit`. A share with guaranteed == 0 is fixed.
  uint32_t guaranteed = 0, limit = 0;
  bool starved = false;  // The job waits for memory up to its fair share of the pool.
  std::unique_ptr<SlotPool> slots;
  // A segment is a region (device and host) or a store (SSD), made when its slots are first needed.
  // Slot n is in segment n / slots_per_segment.
  std::vector<uint32_t> segments;  // RegionId or StoreId; kNoSegment: given back.
  uint32_t slots_per_segment = 0;
  uint32_t making = kNoSegment;  // The segment that is being made.
  // The machine had no memory for a segment, and the job has too few slots to go on without it.
  bool make_after_tick = false;
  // Each segment is one slot, and may be given back while the job runs.
  bool by_slot = false;
  // Host memory only: the slots by which the balloon makes the pool smaller, and whether one slot
  // is being populated again.
  uint32_t balloon = 0;
  bool deflating = false;
  // Regions that a smaller device share gave up, each with the sessions that still map it. A region
  // without sessions is being dropped.
  std::map<uint32_t, std::vector<SessionId>> leaving;

  // Copies that may be evicted. Empty at the home tier.
  EvictionQueue victims;
  // Chunks that are pinned here, by the same order.
  EvictionQueue pinned_queue;
  // Chunks with a prefetch to this tier.
  MarkCount prefetches;
  std::deque<ChunkIndex> slot_queue;  // Chunks that wait for a slot, oldest first.
  MarkCount evicting;                 // Victims whose copies have not left yet.
  uint64_t pins_made = 0;             // Grows whenever an unpinned chunk is pinned here.
  // When leases were last revoked again for the calls that they exclude.
  Instant revoked_again_at;

  bool exists() const { return slots != nullptr; }
  uint32_t pinned_chunks() const { return static_cast<uint32_t>(pinned_queue.size()); }
  bool is_elastic() const { return guaranteed > 0; }
  // Slots with those of the balloon.
  uint32_t slots_with_balloon() const { return exists() ? slots->size() + balloon : 0; }
  // The number of slots in the next segment.
  uint32_t next_segment_slots() const {
    return by_slot ? 1 : std::min(limit - slots->numbers(), slots_per_segment);
  }
  // Slots whose memory exists, or is being made.
  uint32_t made_slots() const {
    const uint32_t making_slots = making != kNoSegment ? next_segment_slots() : 0;
    return making_slots +
           (by_slot ? slots->backed_slots() : slots->numbers() - slots->gone_slots());
  }
  // Whether a segment may be made or a slot populated. A segment is made whole or not at all.
  bool can_grow() const {
    if (make_after_tick) return false;
    const uint32_t missing = slots->missing_slots();
    if (missing == 0 || by_slot) return missing > 0;
    const bool fills = slots->unbacked_slots() > 0;
    // Slots that are being given back still exist.
    if (is_elastic() && made_slots() + (fills ? 1 : next_segment_slots()) > target) return false;
    return fills || missing >= next_segment_slots();
  }
};

// A resize that waits for memory to be given back.
struct ResizeOperation {
  CallId call;
  SessionId session;
  Instant deadline;
};

struct Job {
  enum class State : uint8_t { kMaking, kRunning, kLingering, kEnding };

  JobId id;
  State state = State::kMaking;
  uint32_t uid = 0;
  std::string name;
  Bytes chunk_size;
  Duration time_to_live{0};
  bool persistent = false;  // The job outlives the daemon: its changes are recorded.
  Instant lingers_until;
  std::array<TierShare, kTiers> tiers;
  Tier home = Tier::kSsd;   // The lowest tier.
  Tier work = Tier::kHost;  // The fastest one.
  MemoryKind device_memory = MemoryKind::kSharedMemory;

  // Fetches and steps that are not granted, and the chunks that they name.
  Count waiting_calls, waiting_chunks;
  WaitingCalls waiting;  // Those that are not admitted.

  std::vector<SessionId> sessions;
  std::vector<OpenCall> joining;        // They wait for the first memory.
  std::deque<AllocateCall> allocating;  // They wait for memory at the home tier.
  absl::optional<ResizeOperation> resize;
  Instant leases_revoked_at;      // For a share that shrinks.
  uint32_t segments_pending = 0;  // Being made, dropped, released or populated.
  absl::Status making_status;

  MemberTable members;                       // Its chunks.
  std::vector<ChunkIndex> retry_after_tick;  // Chunks whose write-back failed.
  Count steps;                               // Step parts that are admitted and not done.
  JobForecast forecast;
  uint64_t mispredictions = 0;
  // Host memory outside memtide, as a session last reported it; its peak in this iteration, and in
  // the last one, which predicts the next peak.
  Bytes own_host, own_host_peak, own_host_predicted;
  JobTrace trace;
  uint64_t committed_step = 0;
  std::string manifest;  // The step manifest of the last commit.
  ListedWork listed_work{this};
  Duration stalled{0};      // The sum of the stalls of its fetches.
  absl::Status last_error;  // The last failed transfer or segment; explains an expired deadline.

  TierShare& tier(Tier t) { return tiers[static_cast<int>(t)]; }
  const TierShare& tier(Tier t) const { return tiers[static_cast<int>(t)]; }
  // The number of chunks that may be leased at `t`. One host slot is exempt where chunks pass
  // through host memory on their way to the device without owning a slot there.
  uint32_t LeaseLimit(Tier t) const {
    const uint32_t slots = std::max(tier(t).slots_with_balloon(), tier(t).guaranteed);
    const bool passage = t == Tier::kHost && work == Tier::kDevice && home != Tier::kHost;
    return passage && slots > 0 ? slots - 1 : slots;
  }
  // Device regions, made or in the making, beyond the slots of the share.
  uint32_t SurplusRegions() const {
    const TierShare& device = tier(Tier::kDevice);
    if (!device.by_slot) return 0;
    const uint32_t regions = device.slots->backed_slots() + (device.making != kNoSegment);
    return regions - std::min(regions, device.slots->size());
  }
  uint32_t MaxChunks() const {
    return tier(home).is_elastic() ? tier(home).limit : tier(home).slots->size();
  }
  // The lease budget: it leaves a quarter of the slots to early write-back and prefetch.
  uint32_t LeaseBudget() const { return LeaseBudgetOf(tier(work).slots->size()); }
  static uint32_t LeaseBudgetOf(uint32_t slots) {
    return slots < 2 ? 1 : slots - std::max(uint32_t{1}, slots / 4);
  }
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_JOB_H_

// Job and Session: who shares chunks, and the memory lent to them. Engine-internal.
#ifndef MEMTIDE_DAEMON_ENGINE_JOB_H_
#define MEMTIDE_DAEMON_ENGINE_JOB_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/engine/chunk.h"
#include "daemon/engine/effects.h"
#include "daemon/engine/job_trace.h"
#include "daemon/engine/types.h"
#include "daemon/policy/foresight.h"
#include "daemon/policy/plan.h"
#include "daemon/policy/victims.h"
#include "daemon/pool/slot_pool.h"

namespace memtide {

// Memory is made in parts of this size, so that a small job starts at once and a large one does
// not touch what it may never need. Larger chunks: one chunk a part.
inline constexpr Bytes kPartSize = MiB(256);

// A job's part of one tier.
struct JobTier {
  Bytes share;          // Lent: whole chunks, also such as are wanted back.
  uint32_t target = 0;  // Slots wanted; the pool has fewer where memory could not be made.
  // An elastic share (shares.cc) follows what its job and others need: `target` moves between
  // `claim`, which nobody else gets, and `most`. No claim: the share is fixed.
  uint32_t claim = 0, most = 0;
  bool pressed = false;  // It waits for more, up to its fair part of the pool.
  std::unique_ptr<SlotPool> slots;
  // Memory comes in parts, made when they are first needed: regions (device and host) or stores
  // (SSD). Slot n is in part n / slots_per_part.
  std::vector<uint32_t> parts;  // RegionId or StoreId; kNoPart: given back.
  uint32_t slots_per_part = 0;
  uint32_t making = kNoPart;  // The part that is being made.
  // Each part is one slot, and may be given back while the job runs.
  bool by_slot = false;
  // Slots by which the pool is smaller than it may be, while the machine is short of memory; and
  // whether the memory of one is on its way back. Host memory only.
  uint32_t withheld = 0;
  bool filling = false;
  // Regions that are no slots any more, and the sessions that have them still. None: the region is
  // being dropped.
  std::map<uint32_t, std::vector<SessionId>> leaving;

  Victims victims;          // Who may leave. None at the home tier.
  Victims held;             // Chunks that are leased here, or about to be.
  uint32_t prefetches = 0;  // Chunks on their way here that nobody waits for.
  // Up to this virtual time, whoever is expected is there or on the way; and up to that one, it
  // should be, or it will come too late. That is looked at anew from `look_again` on.
  uint64_t looked_ahead = 0, needed_until = 0, look_again = 0;
  std::deque<uint32_t> slot_queue;        // Chunks that wait for a slot, oldest first.
  uint32_t pushing = 0;                   // Chunks on their way out: slots to come.
  uint32_t committed = 0;                 // Chunks pinned here.
  std::deque<FetchOperation*> admission;  // Fetches that wait for room or for a lease to end.
  bool room_queued = false;               // In the engine's list of tiers to look at.

  bool exists() const { return slots != nullptr; }
  bool is_elastic() const { return claim > 0; }
  // Slots, with those that are withheld.
  uint32_t most_slots() const { return exists() ? slots->size() + withheld : 0; }
  // Slots of the next part that is made.
  uint32_t next_part() const {
    return by_slot ? 1 : std::min(most - slots->numbers(), slots_per_part);
  }
  // Slots whose memory exists, or is being made.
  uint32_t made_slots() const {
    const uint32_t making_slots = making != kNoPart ? next_part() : 0;
    return making_slots +
           (by_slot ? slots->backed_slots() : slots->numbers() - slots->gone_slots());
  }
  // Whether more memory may be made, or come back: parts are made whole, or not at all.
  bool can_grow() const {
    const uint32_t missing = slots->missing_slots();
    if (missing == 0 || by_slot) return missing > 0;
    const bool fills = slots->unbacked_slots() > 0;
    // What is on its way out is there still.
    if (is_elastic() && made_slots() + (fills ? 1 : next_part()) > target) return false;
    return fills || missing >= next_part();
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
  bool kept = false;  // It outlives the daemon: what changes is recorded.
  Instant lingers_until;
  std::array<JobTier, kTiers> tiers;
  Tier home = Tier::kSsd;   // The lowest tier.
  Tier work = Tier::kHost;  // The fastest one.
  MemoryKind device_memory = MemoryKind::kSharedMemory;

  std::vector<SessionId> sessions;
  std::vector<OpenCall> joining;        // Wait for the first memory.
  std::deque<AllocateCall> allocating;  // Wait for memory at the home tier.
  absl::optional<ResizeOperation> resize;
  Instant leases_asked_back;   // For a share that shrinks.
  uint32_t parts_pending = 0;  // Being made or dropped.
  absl::Status making_status;

  uint32_t chunks = 0;            // Live ones.
  uint32_t dying_chunks = 0;      // Freed ones with a transfer in flight.
  std::vector<uint32_t> members;  // Chunk place by member number.
  // Member numbers to use again, the lowest first: what an iteration frees and allocates anew, the
  // next one finds under the same number.
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<uint32_t>> free_members;
  std::vector<uint32_t> cooling;  // Chunks whose write-back failed.
  uint32_t steps = 0;             // Parts of optimizer steps that are admitted and not done.
  std::array<uint64_t, kChunkKinds> kinds{};
  Foresight foresight;
  // Which chunks stay where, and the next such plan, in the making.
  absl::optional<Plan> plan, next_plan;
  uint64_t surprises = 0;  // Iterations that were not as foreseen.
  // Host memory of a session's own, as told last; the most in this iteration, and in the last one.
  Bytes own_host, own_host_peak, own_host_foreseen;
  JobTrace trace;
  uint64_t published_step = 0;
  std::string note;         // That came with it.
  bool look_ahead = false;  // In the engine's list of jobs that may move chunks ahead.
  // By StartTransfer::Kind: how many there are, how long one occupies its link, in microseconds
  // (a moving average; zero: not known), and when the last one ended.
  std::array<uint32_t, 5> flights{};
  std::array<uint64_t, 5> link_micros{};
  std::array<Instant, 5> link_free{};
  Duration stalled{0};      // Its fetches together.
  absl::Status last_error;  // Of a write-back; explains a wait that ends in a deadline.

  JobTier& tier(Tier t) { return tiers[static_cast<int>(t)]; }
  const JobTier& tier(Tier t) const { return tiers[static_cast<int>(t)]; }
  // Most chunks that may be leased at `t`: where chunks pass through host memory on their way to
  // the device without owning a host slot, one host slot is kept for that.
  uint32_t LeaseLimit(Tier t) const {
    const uint32_t slots = std::max(tier(t).most_slots(), tier(t).claim);
    const bool passage = t == Tier::kHost && work == Tier::kDevice && home != Tier::kHost;
    return passage && slots > 0 ? slots - 1 : slots;
  }
  // Regions of the device, made or in the making, that its share is too small for.
  uint32_t SurplusRegions() const {
    const JobTier& device = tier(Tier::kDevice);
    if (!device.by_slot) return 0;
    const uint32_t regions = device.slots->backed_slots() + (device.making != kNoPart);
    return regions - std::min(regions, device.slots->size());
  }
  uint32_t MaxChunks() const {
    return tier(home).is_elastic() ? tier(home).most : tier(home).slots->size();
  }
  // Leases that a session should stay below, so that a quarter of the slots can be cleaned ahead.
  uint32_t LeaseBudget() const { return LeaseBudgetOf(tier(work).slots->size()); }
  static uint32_t LeaseBudgetOf(uint32_t slots) { return slots - std::max(uint32_t{1}, slots / 4); }
};

struct Session {
  SessionId id;
  uint32_t uid = 0;
  int32_t pid = 0;
  Job* job = nullptr;    // nullptr: none open (yet).
  bool opening = false;  // An OpenCall waits.
  Instant renewed;
  uint32_t leases = 0;
  uint32_t waiting_calls = 0;

  struct Remembered {
    uint64_t request_id = 0;
    size_t event_kind = 0;  // Index in Event: an id belongs to one kind of call.
    Reply reply;
  };
  std::deque<Remembered> remembered;  // Oldest first.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_JOB_H_

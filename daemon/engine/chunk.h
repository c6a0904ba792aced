// Chunk: what the engine knows of one chunk, and the calls that wait for it. Engine-internal.
//
// States. A chunk's content is on the tiers in `valid` (bit per tier); none: it was never written
// and reads as zeros, or as whatever is there. It owns slots where it has, or is getting, a copy,
// and always at its home tier. At most one transfer of a chunk is in flight. A chunk with holds is
// pinned: its copy at hold_tier does not leave.
#ifndef MEMTIDE_DAEMON_ENGINE_CHUNK_H_
#define MEMTIDE_DAEMON_ENGINE_CHUNK_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/engine/effects.h"
#include "daemon/engine/types.h"
#include "daemon/pool/slot_pool.h"

namespace memtide {

// In a job's list of members: nobody has this number.
inline constexpr uint32_t kNoPlace = ~uint32_t{0};
// In a tier's list of parts: no memory has this number.
inline constexpr uint32_t kNoPart = 0;

// Holders of steps are numbered from here on; sessions are not that many.
inline constexpr uint64_t kFirstStepHolder = uint64_t{1} << 63;
inline bool IsStep(SessionId holder) { return holder.value() >= kFirstStepHolder; }

struct Job;
struct FetchOperation;
struct EvictOperation;

// One session's claim on a chunk: a granted lease, calls admitted that will become one, or both.
struct Hold {
  SessionId session;
  uint32_t pending = 0;  // Admitted fetches not yet granted.
  bool granted = false;
  Access access = Access::kRead;          // Of the lease, when granted.
  Access pending_access = Access::kRead;  // The strongest that is pending.
};

// The transfer in flight.
struct Flight {
  TransferId transfer;
  StartTransfer::Kind kind = StartTransfer::Kind::kZero;
  absl::optional<Tier> from;  // nullopt: zeros.
  Tier to = Tier::kHost;
  Version version;  // What is being copied; an older one than the chunk's is not a valid copy.
  TracedMove traced;
};

struct Chunk {
  // Identity. job == nullptr: this place of the table is empty.
  Job* job = nullptr;
  uint32_t generation = 0;
  uint32_t member = 0;  // Its number within the job, for the policies.
  ChunkKind kind = ChunkKind::kOther;
  bool torn = false;
  bool dying = false;      // Freed, but a transfer is still in flight: a name no more, slots still.
  bool queued = false;     // In the engine's ready list.
  bool touched = false;    // In the engine's list of what is to be recorded.
  uint8_t waits_for = 0;   // Tiers (bits) in whose slot queue it stands.
  uint8_t came_ahead = 0;  // Tiers (bits) that it came to for a use that is still to come.
  uint8_t valid = 0;       // Tiers (bits) with a copy.
  Version version;

  // Copies.
  std::array<Slot, kTiers> slots;
  absl::optional<Flight> flight;
  std::array<uint64_t, 2> arrived{};  // At device and host: a count that grows with every arrival.

  // Wishes, strongest first: waiting fetches (to hold_tier), prefetch, evict, push (as victim),
  // clean.
  Tier hold_tier = Tier::kHost;
  // A copy is written down ahead of that.
  absl::optional<Tier> prefetch_to, evict_to, push_from, clean_from;
  bool wrote_back = false;    // Since its copy was chosen to leave.
  bool evicted = false;       // By request; not brought ahead until somebody asks for it.
  bool asked_back = false;    // Its lease was, as it is expected late.
  bool cooling = false;       // A write-back failed lately: no victim until the next second.
  uint8_t failures = 0;       // Of bringing it, in a row.
  bool blank = false;         // "Valid", but what it is to hold has not been computed yet.
  bool leased = false;        // By a session, since it was last stepped.
  bool only_stepped = false;  // In between two steps no session leased it.
  bool overwrite = false;     // By an admitted step: where it holds nothing, nothing is brought.
  bool undefined = false;     // Not zeros, where it holds nothing.
  // With whom it exchanged contents when a step was last published, and will again; the twin is the
  // one whose content is made between two steps.
  bool is_twin = false;
  uint32_t partner = kNoPlace;
  uint32_t steps = 0;       // Running ones that use its memory.
  uint64_t batch_mark = 0;  // The last batch that named it: finds duplicates.

  std::vector<Hold> holds;
  std::vector<FetchOperation*> fetches;  // Admitted, waiting for this chunk.
  std::vector<EvictOperation*> evicts;

  bool live() const { return job != nullptr && !dying; }
  bool valid_at(Tier tier) const { return valid >> static_cast<int>(tier) & 1; }
  bool pinned() const { return !holds.empty(); }
  bool pinned_at(Tier tier) const { return pinned() && hold_tier == tier; }
  Slot& slot(Tier tier) { return slots[static_cast<int>(tier)]; }
  const Slot& slot(Tier tier) const { return slots[static_cast<int>(tier)]; }
  Hold* FindHold(SessionId session) {
    for (Hold& hold : holds) {
      if (hold.session == session) return &hold;
    }
    return nullptr;
  }
};

// A fetch that could not be answered at once, or a step that waits for its chunks. A step has its
// chunks as a session of its own would, so that it excludes, and is excluded, as sessions are.
struct FetchOperation {
  CallId call;
  SessionId session;  // Who holds the chunks.
  SessionId owner;    // Who called.
  Job* job = nullptr;
  Tier tier = Tier::kDevice;
  std::vector<uint32_t> chunks;                 // Places in the chunk table.
  size_t first_written = 0;                     // From this one on, they are wanted for writing.
  std::shared_ptr<const optimizer::Work> work;  // Of a step.
  bool admitted = false;
  uint32_t missing = 0;  // Chunks that are not at the tier yet.
  Instant started, deadline, revoked_at;
  bool waited_for_ssd = false, waited_for_copy = false;

  Access AccessOf(size_t i) const { return i < first_written ? Access::kRead : Access::kWrite; }
};

// A step that is being computed.
struct RunningStep {
  CallId call;
  SessionId holder, owner;
  Job* job = nullptr;
  std::vector<uint32_t> chunks;  // Places in the chunk table.
  size_t first_written = 0;
};

struct EvictOperation {
  CallId call;
  SessionId session;
  Job* job = nullptr;
  Tier tier = Tier::kSsd;
  std::vector<uint32_t> chunks;
  uint32_t missing = 0;
  Instant deadline;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_CHUNK_H_

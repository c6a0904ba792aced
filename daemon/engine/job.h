// Job: what the engine knows of one training run: its shares, sessions, chunks and waiting calls,
// and for each tier the TierQueues of its chunks. Engine-internal.
//
// Ownership: a Job owns its shares, which return to the pools with it.
#ifndef MEMTIDE_DAEMON_ENGINE_JOB_H_
#define MEMTIDE_DAEMON_ENGINE_JOB_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "base/count.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"
#include "daemon/engine/interface/types.h"
#include "daemon/engine/shares/share_ledger.h"
#include "daemon/engine/tables/admission_queue.h"
#include "daemon/engine/tables/chunk.h"
#include "daemon/engine/tables/common_contents.h"
#include "daemon/engine/tables/job_trace.h"
#include "daemon/engine/tables/manifest.h"
#include "daemon/engine/tables/member_table.h"
#include "daemon/engine/tables/name_table.h"
#include "daemon/engine/tables/pending_calls.h"
#include "daemon/engine/tables/shared_parts.h"
#include "daemon/engine/tables/tier_mark.h"
#include "daemon/engine/tables/work_list.h"
#include "daemon/policy/eviction_queue.h"
#include "daemon/policy/job_forecast.h"

namespace memtide {

// The queues of a job's chunks at one tier, and the counts of those that move there. They are empty
// where the job has no memory.
struct TierQueues {
  // Copies that may be evicted. Empty at the home tier.
  EvictionQueue victims;
  // Chunks that are pinned here, by the same order.
  EvictionQueue pinned_queue;
  // Chunks with a prefetch to this tier.
  MarkCount prefetches;
  std::deque<ChunkIndex> slot_queue;  // Chunks that wait for a slot, oldest first.
  std::vector<ChunkIndex> takers;     // By slot of the device: the chunk that took it last.
  MarkCount evicting;                 // Victims whose copies have not left yet.
  uint64_t pins_made = 0;             // Grows whenever an unpinned chunk is pinned here.
  Count admitted;                     // Calls that are admitted here and not granted.
  // When leases were last revoked again for the calls that they exclude.
  Instant revoked_again_at;

  uint32_t pinned_chunks() const { return static_cast<uint32_t>(pinned_queue.size()); }
};

// A resize that waits for memory to be given back.
struct ResizeOperation {
  CallId call;
  SessionId session;
  Instant deadline;
};

// An Open that waits for memory that is being given back.
struct WaitingOpen {
  OpenCall call;
  Instant deadline;
};

// A commit of one rank that waits for those of the others.
struct WaitingCommit {
  CommitCall call;
  Instant deadline;
};

// A rank whose chunks and last commit outlive its session.
struct KeptRank {
  SessionId session;  // The rank's last one, which owns its chunks until the next one opens.
  uint64_t committed_step = 0;
  Manifest manifest;
};

// JobSnapshots has a job's last snapshot, and the one that is being saved (records/snapshots.cc).
struct JobSnapshots {
  struct Saving {
    std::vector<uint64_t> steps;  // The last ones that it has, as CommittedSteps().
    // Chunks that are to be written to SSD first. If the SSD alone has one, it is read for that: a
    // few are read at once (`reading`), and the others stand in `unread`.
    std::set<ChunkIndex> unwritten, reading, unread;
    bool is_started = false;        // The SaveSnapshot is emitted.
    std::vector<SlotNumber> slots;  // SSD slots that it names: in quarantine from then on.
    std::shared_ptr<const Snapshot> snapshot;
    bool may_be_there = false;  // A save of it has ended with UNKNOWN.
  };
  struct AwaitingCommit {
    CallId call;
    SessionId session;
    uint32_t rank = 0;
    uint64_t step = 0;
    Instant deadline;
  };

  uint32_t every = 0;                 // As in OpenCall. Zero: the job is not durable.
  std::vector<uint64_t> saved_steps;  // The last snapshot has them; empty: there is none.
  std::vector<SlotNumber> slots;      // SSD slots that the last snapshot names, in quarantine.
  absl::optional<Saving> saving;
  // It, or the last one, is on stable storage. It is saved again before another is: all slots are
  // in quarantine for the two, so that what was written since may have none.
  absl::optional<Saving> uncertain;
  Instant next_try;                     // After a failure, for what no commit asks for.
  std::vector<AwaitingCommit> commits;  // They wait for `saving`.

  // The SSD slots of all its snapshots; twice, where two name one.
  std::vector<SlotNumber> NamedSlots() const {
    std::vector<SlotNumber> named = slots;
    for (const absl::optional<Saving>* each : {&saving, &uncertain}) {
      if (each->has_value())
        named.insert(named.end(), (*each)->slots.begin(), (*each)->slots.end());
    }
    return named;
  }

  // The last step of the rank that is on stable storage; of a job without ranks, of rank 0.
  uint64_t SavedStep(uint32_t rank) const {
    return rank < saved_steps.size() ? saved_steps[rank] : 0;
  }
};

// The writes of a job to a slower tier that failed since one there ended well
// (residency/transfers.cc).
struct FailedWrites {
  Tier to = Tier::kSsd;
  uint32_t tries = 0;  // In a row. Failures before `next_try` are part of one.
  Instant next_try;
};

// The failed transfers of a job that the log does not have.
struct UnreportedFailures {
  uint64_t count = 0;
  absl::Status last;
  absl::optional<Instant> reported_at;  // The failures before these were logged then.
};

// The clock of a job, which stands still while its fetches wait.
class JobClock {
 public:
  uint64_t MicrosecondsAt(Instant now) const {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch() - stalled_)
            .count());
  }
  // A fetch has waited.
  void Stalled(Instant from, Instant to) {
    stalled_ += to - std::min(to, std::max(from, stalled_until_));
    stalled_until_ = to;
  }

 private:
  Duration stalled_{0};    // Time in which fetches waited, of several once.
  Instant stalled_until_;  // The last of it.
};

// Host memory outside memtide, as a session of the job last reported it; its peak in this
// iteration, and in the last one, which predicts the next peak.
struct OwnHost {
  Bytes now, peak, predicted;

  void Report(Bytes reported) {
    now = reported;
    peak = std::max(peak, reported);
  }
  void EndIteration() { predicted = std::exchange(peak, now); }
};

// The fields stand by the class that changes them most. Others read them, and end what of it is
// theirs: Jobs the allocations of a session that ends, say.
struct Job {
  // Jobs: who it is, and when it ends.
  JobId id;
  uint32_t uid = 0;
  std::vector<uint32_t> groups;  // The user's groups, by number.
  std::string name;
  Bytes chunk_size;
  Duration time_to_live{0};
  bool persistent = false;  // The job outlives the daemon: its changes are recorded.
  Instant made_at, lingers_until;
  bool lingers_no_more = false;  // It ends with its last session, whatever its time to live.
  std::vector<SessionId> sessions;
  std::vector<OpenCall> joining;  // They wait for the first memory.
  uint32_t ranks = 0;             // How many the training has; zero: none.
  // The device was lost before, so that the sessions have regions that are not there any more.
  bool has_lost_regions = false;

  // Memory.
  std::unique_ptr<JobShares> shares;
  Tier home = Tier::kSsd;         // The lowest tier.
  Tier lease_tier = Tier::kHost;  // The fastest one: sessions lease chunks there.
  MemoryKind device_memory = MemoryKind::kSharedMemory;
  // Host regions to which the process of a session that has ended may still write
  // (memory/exposed_regions.cc).
  std::set<uint32_t> exposed_regions;
  absl::optional<ResizeOperation> resize;
  Instant leases_revoked_at;  // For a share that shrinks.
  absl::Status making_status;

  // Residency, Victims and Prefetcher.
  MemberTable members;  // Its chunks.
  // Chunks with Chunk::retry_after_tick, oldest first, and some that were freed.
  std::deque<ChunkId> retry_after_tick;
  UnreportedFailures unreported;
  JobForecast forecast;
  uint64_t mispredictions = 0;
  OwnHost own_host;
  absl::optional<Instant> waited_for_budget;  // When an eviction to SSD last began after a wait.
  // Chunks of the job that are readers of common contents.
  Count common;
  // Contents that duplicates have in common, in slots of the job's own host memory.
  CommonContents duplicated;
  uint64_t clean_drops = 0;  // Copies dropped from the device, where writes are not caught.

  // Calls.
  // Fetches, steps and evictions that are not granted, and the chunks that they and offers name.
  Count waiting_calls, waiting_chunks;
  AdmissionQueue waiting;               // Calls that are not admitted.
  std::deque<AllocateCall> allocating;  // They wait for memory at the home tier.
  Count steps;                          // Step parts that are admitted and not done.
  JobClock clock;

  // Offers.
  // The job is hidden, has the memory of these, and has no session and no chunk. nullptr: it is
  // not.
  CommonContents* contents = nullptr;

  // RankContents.
  bool orphans_remain = false;  // Chunks of ranks that have ended are still used.

  // Commits.
  std::vector<KeptRank> kept_ranks;    // By rank; empty unless keeps_ranks().
  std::vector<WaitingCommit> commits;  // They wait for the other ranks.
  uint64_t committed_step = 0;
  Manifest manifest;  // The step manifest of the last commit.

  // Records.
  JobSnapshots snapshots;

  // Requests.
  bool uses_device = false;  // A session has asked for chunks at the device.

  // Several classes.
  std::array<TierQueues, kTiers> queues;
  JobTrace trace;
  FailedWrites failed_writes;
  absl::Status last_error;  // The last failed transfer or segment; explains an expired deadline.
  NameTable names;          // The ids of contents that ranks share.
  SharedParts parts;
  bool tries_commits = false;  // CommitsPossible is sent.
  ListedWork listed_work{this};

  TierQueues& tier(Tier t) { return queues[static_cast<int>(t)]; }
  const TierQueues& tier(Tier t) const { return queues[static_cast<int>(t)]; }
  Owner owner() const { return {uid, groups}; }
  JobState state() const { return shares->state(); }
  // Whether its oldest allocation waits for slots of host memory that it claims.
  bool waits_to_claim() const {
    return !allocating.empty() && allocating.front().home.value_or(home) != home;
  }
  // Whether a host region is being copied: no chunk moves meanwhile.
  bool is_replacing() const { return share(Tier::kHost).replacing() != kNoSegment; }
  // Whether ranks make step parts once, and commit together.
  bool shares_contents() const { return ranks > 1; }
  // Whether a session finds what the session that was its rank before has left.
  bool keeps_ranks() const { return ranks > 1 && time_to_live > Duration(0); }
  // The last step of each rank that is kept; of another job, its own.
  std::vector<uint64_t> CommittedSteps() const {
    if (!keeps_ranks()) return {committed_step};
    std::vector<uint64_t> steps;
    for (const KeptRank& rank : kept_ranks) steps.push_back(rank.committed_step);
    return steps;
  }
  Share& share(Tier t) { return (*shares)[t]; }
  const Share& share(Tier t) const { return (*shares)[t]; }
  // The number of chunks that may be leased at `t`: all slots but those that are claimed. One host
  // slot is exempt where chunks pass through host memory on their way to the device without owning
  // a slot there.
  uint32_t LeaseLimit(Tier t) const { return LeaseLimitOf(t, share(t).most_slots()); }
  uint32_t LeaseLimitOf(Tier t, uint32_t slots) const {
    const bool passage = t == Tier::kHost && lease_tier == Tier::kDevice && home != Tier::kHost;
    const uint32_t others = passage + share(t).claims();
    return slots - std::min(slots, others);
  }
  // Where chunks may leave host memory, what duplicated ones have in common does not: it claims its
  // slot. Elsewhere its slot is a home.
  uint32_t claims_of_duplicated() const { return home == Tier::kHost ? 0 : duplicated.size(); }
  // Slots at the lowest tier of live chunks, or of what duplicated ones have in common.
  uint32_t chunks_at_home() const {
    const uint32_t claims = share(Tier::kHost).claims() - claims_of_duplicated();
    const uint32_t of_contents = duplicated.size() - claims_of_duplicated();
    return members.live() - claims - common.value() + of_contents;
  }
  bool is_durable() const { return snapshots.every > 0; }
  // A durable job has a second slot for each chunk, as what a snapshot names stays where it is
  // until the next snapshot.
  uint32_t HomeSlotsFor(uint32_t chunks) const { return is_durable() ? 2 * chunks : chunks; }
  uint32_t MaxChunks() const {
    const uint32_t slots =
        share(home).is_elastic() ? share(home).limit() : share(home).slots().size();
    return is_durable() ? slots / 2 : slots;
  }
  // The slots at the tier of the leases as they are announced: those of an elastic share by its
  // limit. The current number follows in SendLeaseBudget.
  uint32_t AnnouncedSlots() const {
    const Share& leased = share(lease_tier);
    return leased.is_elastic() ? leased.limit() : leased.slots_with_balloon();
  }
  uint32_t AnnouncedLeaseBudget() const { return LeaseBudgetOf(AnnouncedSlots()); }
  // The lease budget of a session: all budgets together leave a quarter of the slots to early
  // write-back and prefetch.
  uint32_t LeaseBudget() const { return LeaseBudgetOf(share(lease_tier).slots().size()); }
  uint32_t LeaseBudgetOf(uint32_t slots) const {
    const uint32_t all = slots < 2 ? 1 : slots - std::max(uint32_t{1}, slots / 4);
    return std::max(uint32_t{1}, all / std::max(uint32_t{1}, ranks));
  }
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_JOB_H_

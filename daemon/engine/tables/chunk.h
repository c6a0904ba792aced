// Chunk: one chunk's copies, pins and pending movements. Engine-internal.
//
// States. `copies().valid` has each tier that holds the chunk's current content. When no
// bit is set, the chunk was never written and reads as zeros, or as anything if it is `undefined`
// or `discarded`. A chunk owns a slot where it has a copy or is getting one, and at its home tier:
// always if that is the job's lowest tier, and from its first copy there on, as long as it has
// content, if it claims a slot of host memory above it. The copy of a common content (sharing/) is
// in host memory, which is its home, in a slot that is none of the job's. At most one transfer of a
// chunk is in flight. A chunk with pins keeps its copy at pin_tier.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_CHUNK_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_CHUNK_H_

#include <array>
#include <cstdint>
#include <experimental/propagate_const>
#include <forward_list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "base/content_sums.h"
#include "base/count.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/types.h"
#include "daemon/engine/tables/common_contents.h"
#include "daemon/engine/tables/tier_mark.h"
#include "daemon/pool/slot_pool.h"

namespace memtide {

// Session ids from here on stand for optimizer steps, which pin their chunks as sessions do.
inline constexpr uint64_t kFirstStepHolder = uint64_t{1} << 63;
// The owners of chunks that a daemon has restored, until a session of the rank opens.
inline constexpr uint64_t kFirstKeptRank = uint64_t{1} << 62;
inline bool IsStep(SessionId holder) { return holder.value() >= kFirstStepHolder; }

// No chunk has it.
inline constexpr Version kNoVersion{~uint64_t{0}};

struct Job;
struct Waiter;
struct EvictOperation;

// One session's use of a chunk: a granted lease, admitted fetches that will become one, or both.
class Pin {
 public:
  explicit Pin(SessionId holder) : session(holder) {}

  // `lease`: counts the lease for its session as long as it is granted. A step has no leases.
  void Grant(Access granted_access, Count::Token lease) {
    lease_ = std::move(lease);
    granted_ = true;
    access = granted_access;
  }
  void EndGrant() {
    granted_ = false;
    lease_.End();
  }
  bool granted() const { return granted_; }

  SessionId session;
  uint32_t pending = 0;  // Admitted fetches not yet granted.
  // The access of the granted lease.
  Access access = Access::kRead;
  // The strongest access among the pending fetches.
  Access pending_access = Access::kRead;

 private:
  bool granted_ = false;
  Count::Token lease_;
};

// The transfer in flight.
struct Flight {
  TransferId transfer;
  StartTransfer::Kind kind = StartTransfer::Kind::kZero;
  absl::optional<Tier> from;  // nullopt: the transfer writes zeros.
  Tier to = Tier::kHost;
  // The version that is copied. If the chunk has a newer one at the end, the copy is not valid.
  Version version;
  TracedMove traced;
  bool awaited = false;  // The edges know that a call waits for it.
  // The device that it copies from or to was lost meanwhile: whatever arrives is no copy.
  bool is_void = false;
  bool is_unflushed = false;  // To SSD: a flush has failed since it began.
  Bytes verified;             // How much is compared with sums.
};

// A home that is reserved for a chunk: a slot at the lowest tier of its job, or a claim on one
// above.
struct Home {
  Tier tier = Tier::kSsd;
  Slot slot;
  Count::Token claim;
};

// Where the content of a chunk is and may be: what a commit exchanges between a chunk and its
// shadow chunk. Residency alone changes it (ChunkTable::WritableCopies).
struct Copies {
  // The tiers where the slot has a copy of the current content.
  TierSet valid;
  // The writer died: the content is neither the old nor the new one.
  bool torn = false;
  // Besides: the only copy was in memory of the device that failed.
  bool memory_failed = false;
  // The only copy is on SSD, and was not what had been written when it was last read: no prefetch
  // tries it again.
  bool unreadable = false;
  // The copy on SSD is the only one that lasts, and a flush has failed since it was written: it may
  // be gone.
  bool unflushed = false;
  // A client discarded the content: until it is written anew it reads as anything.
  bool discarded = false;
  // The lowest tier that the chunk ever reaches.
  Tier home = Tier::kSsd;
  std::array<Slot, kTiers> slots;
  // The sums of the copy on SSD, if that is valid and was written with sums.
  ContentSums sums;
  // At device and host: the value of Core::insertions when the copy was made.
  std::array<uint64_t, 2> insertion_seq{};
  // Allocated, as few of up to a million chunks move at a time. It is const where the copies are.
  std::experimental::propagate_const<std::unique_ptr<Flight>> flight;
  // The home is host memory although the job has SSD, too: the chunk counts in Share::claims.
  Count::Token claim;
  // The chunk reads this content, which is not written. It counts as its reader, and, as long as it
  // is live, in Job::common.
  CommonContent* common = nullptr;
  Count::Token of_readers, of_common;

  Slot& slot(Tier tier) { return slots[static_cast<int>(tier)]; }
  const Slot& slot(Tier tier) const { return slots[static_cast<int>(tier)]; }
};

// How calls use a chunk and wait for it. Calls alone changes it (ChunkTable::WritableUses).
struct Uses {
  std::vector<Pin> pins;
  // Admitted fetches and steps that wait for this chunk.
  std::vector<Waiter*> waiters;
  std::forward_list<EvictOperation*> evicts;  // The youngest first.
  // The version that a client has evicted: it is not prefetched until a session uses it again.
  Version evicted = kNoVersion;
  Tier pin_tier = Tier::kHost;    // The tier of all pins.
  absl::optional<Tier> evict_to;  // The tier to which `evicts` move it.
  // A Revoke named the chunk, because other chunks are predicted sooner.
  bool revoke_sent = false;
  // A session leased the chunk since a step last used it.
  bool leased = false;
  // No session leased the chunk between the last two steps that used it.
  bool only_stepped = false;
  // An admitted step writes the whole chunk, so that it needs no old content.
  bool overwrite = false;

  const Pin* FindPin(SessionId session) const {
    for (const Pin& pin : pins) {
      if (pin.session == session) return &pin;
    }
    return nullptr;
  }
  Pin* FindPin(SessionId session) {
    return const_cast<Pin*>(std::as_const(*this).FindPin(session));
  }
};

struct Chunk {
  // Identity. An entry of the chunk table is empty when job is nullptr.
  Job* job = nullptr;
  SessionId owner;  // Allocated it.
  uint32_t generation = 0;
  Member member;                      // The chunk's number within its job, as the policies know it.
  ChunkIndex counterpart = kNoChunk;  // See is_shadow.
  Version version;
  // The version that a part of several ranks has made, so that it is the same for all whose ids
  // name the entry; zero: none.
  Version shared_result;
  // The last batch of ids that named the chunk. It finds duplicates.
  uint64_t batch_mark = 0;

  // Pending movements, strongest first: admitted fetches (to Uses::pin_tier), prefetch, requested
  // eviction (to Uses::evict_to), eviction as a victim, early write-back.
  // evict_from: the copy at that tier is a victim. write_back_from: the copy at that tier is
  // written back early and stays. TierQueues::prefetches and TierQueues::evicting count two.
  TierMark prefetch_to, evict_from;
  absl::optional<Tier> write_back_from;
  // A write-back ran since the copy was chosen as a victim.
  bool wrote_back = false;
  // The present copy at the device was chosen for a check of clean drops.
  bool checked = false;
  // A write of the chunk to a slower tier failed. Until RetryWrites() it is no victim, and is not
  // written for a snapshot.
  bool retry_after_tick = false;
  // Transfers to a faster tier that failed in a row.
  uint8_t failures = 0;
  // The slot is reserved for a step's output: `valid` is set, but the content is garbage until
  // StepDone.
  bool blank = false;
  // The chunk may read as anything before it is first written, instead of as zeros.
  bool undefined = false;
  // The last commit exchanged the contents of the chunk and its counterpart, and the next one will
  // again. One of the two is the shadow: a step creates the new content in it.
  bool is_shadow = false;

  ChunkKind kind = ChunkKind::kOther;
  // The engine offers the chunk again whenever it was written (sharing/repeated_offers.cc).
  bool repeats_offer = false;
  uint8_t offers_in_vain = 0;  // Since the content was last a common one.
  // The chunk ends with the job's last session, and is not recorded.
  bool transient = false;
  // The tiers in whose slot queues the chunk stands. SSD: it waits for a budget (SsdWrites).
  TierSet waits_for;
  // The tiers where a transfer put a copy for a use that has not come yet.
  TierSet prefetched_to;

  // False: the entry is empty, or the chunk was freed, but a transfer or step still uses its slots.
  bool live() const { return job != nullptr && !freed_; }
  // A running step reads or writes the host memory of the chunk.
  bool in_step() const { return steps_ > 0; }
  const Copies& copies() const { return copies_; }
  const Uses& uses() const { return uses_; }
  Tier home() const { return copies_.home; }
  // nullptr: its content is its own.
  CommonContent* common() const { return copies_.common; }
  bool has_content() const { return !copies_.valid.empty(); }
  bool valid_at(Tier tier) const { return copies_.valid.has(tier); }
  bool holds_shared_result() const { return shared_result == version && version != Version(); }
  bool pinned() const { return !uses_.pins.empty(); }
  bool is_evicted() const { return uses_.evicted == version; }
  // Whether the engine repeats offers of the chunk, which is no shadow chunk.
  bool is_repeated() const { return repeats_offer && !is_shadow; }
  bool pinned_at(Tier tier) const { return pinned() && uses_.pin_tier == tier; }
  // Whether the chunk is pinned at the tier, in a slot of the job.
  bool is_pinned_in_room(Tier tier) const {
    return tier != Tier::kSsd && live() && pinned_at(tier) && takes_room_at(tier);
  }
  // Whether the copy at the tier may be chosen as a victim.
  bool may_leave(Tier tier) const {
    return tier != Tier::kSsd && live() && tier != home() && slot(tier) && valid_at(tier) &&
           !copies_.flight && !pinned_at(tier) && !evict_from.has_value() &&
           !uses_.evict_to.has_value() && !retry_after_tick;
  }
  // Whether the slot at `tier` stays while it has no copy.
  bool KeepsSlot(Tier tier) const { return tier == home() && (!copies_.claim || has_content()); }
  // Whether there is memory for a copy at the tier, the job's or that of a common content.
  bool has_slot(Tier tier) const { return slot(tier) || !takes_room_at(tier); }
  // Whether a copy at the tier needs a slot of the job.
  bool takes_room_at(Tier tier) const { return common() == nullptr || tier != Tier::kHost; }
  const Slot& slot(Tier tier) const { return copies_.slot(tier); }
  // The session or step that excludes all others, if there is one.
  absl::optional<SessionId> Writer() const {
    for (const Pin& pin : uses_.pins) {
      if ((pin.granted() && pin.access == Access::kWrite) ||
          (pin.pending > 0 && pin.pending_access == Access::kWrite)) {
        return pin.session;
      }
    }
    return absl::nullopt;
  }

 private:
  friend class ChunkTable;
  friend class HeldChunks;
  bool freed_ = false;
  uint32_t steps_ = 0;
  Copies copies_;
  Uses uses_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_CHUNK_H_

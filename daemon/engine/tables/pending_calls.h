// Waiter, RunningStep, EvictOperation: the calls about chunks that are not answered yet.
// Engine-internal.
//
// Ownership: the tables of Calls own them. They point at their job, and hold tokens of its counts
// and of those of their session, so that both outlive them.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_PENDING_CALLS_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_PENDING_CALLS_H_

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "absl/types/optional.h"
#include "base/count.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"
#include "daemon/engine/interface/types.h"
#include "daemon/engine/tables/admission_queue.h"
#include "daemon/engine/tables/chunk_table.h"
#include "daemon/pool/slot_pool.h"

namespace memtide {

struct Job;

// A step part of the daemon that copies contents which ranks share, for a call that writes them.
// The new entries are not named before the part has ended.
struct Unsharing {
  FetchCall call;
  Instant deadline;  // The call ends then; it is made again once the contents are copied.
  std::vector<ChunkId> ids;
  std::vector<ChunkIndex> shared;
  std::vector<ChunkId> copies;  // The ids of their entries.
};

// An OfferCall that is not answered yet (sharing/offers.cc), or an offer of the engine's own, which
// repeats one (sharing/repeated_offers.cc).
struct Offer {
  struct Item {
    uint32_t number = 0;  // In the call.
    ChunkId id;
    Version version;  // The step part reads this version.
    // The id of an entry that reads the content until the chunk itself does.
    absl::optional<ChunkId> reader;
    bool is_copied = false;  // The part makes the content. Otherwise it compares with it.
  };
  CallId call;
  SessionId session;
  bool repeats = false;       // It is the engine's own, and has no call.
  Duration deadline{0};       // Each step part has it.
  Instant give_up_at;         // For contents that others make, and for memory.
  bool lacks_memory = false;  // No more is made for the call.
  std::vector<Item> open;     // Not decided.
  std::vector<Item> in_part;  // In the step part that waits or runs.
  OfferReply reply;
  // It is none: chunks are to be duplicated (sharing/duplicates.cc).
  absl::optional<DuplicateCall> duplicate;
  Count::Token of_session;  // In its waiting_calls, while no part waits or runs.
  // In the waiting_chunks of the job and the user, until its session ends.
  Count::Tokens chunks_of_job, chunks_of_user;

  void EndCounts() {
    chunks_of_job.End();
    chunks_of_user.End();
  }
};

// Calls of clients have smaller ids than those of the engine's own (sharing/repeated_offers.cc).
inline constexpr uint64_t kFirstOwnCall = uint64_t{1} << 63;
inline bool IsOwn(CallId call) { return call.value() >= kFirstOwnCall; }

// The part of an optimizer's step. The session that computes it ends it by this number; zero: the
// mover copies it.
struct NumberedPart {
  uint64_t number = 0;
};
// Why a part is computed, and so whom its end concerns.
using PartPurpose =
    std::variant<NumberedPart, std::shared_ptr<const Unsharing>, std::shared_ptr<Offer>>;
// Zero: the part has no number.
inline uint64_t NumberOf(const PartPurpose& purpose) {
  const auto* const numbered = std::get_if<NumberedPart>(&purpose);
  return numbered == nullptr ? 0 : numbered->number;
}

// A Waiter ends when all its chunks are at its tier: its session gets leases, or a step part is
// computed.
struct GrantLeases {};
// The mover runs one of `work` and `contents`. Without them the session computes the part.
struct RunStep {
  std::shared_ptr<const CopyWork> work;
  std::shared_ptr<const ContentWork> contents;
  absl::optional<PartDifference> difference;
  PartPurpose purpose;
};

// A call about chunks that is not answered yet, and counts as one that waits. Calls makes it.
struct PendingCall {
  CallId call;
  SessionId owner;  // The calling session.
  Job* job = nullptr;
  Tier tier = Tier::kDevice;
  std::vector<ChunkIndex> chunks;
  uint32_t missing = 0;  // Chunks that have not reached the tier yet.
  Instant deadline;
  // In the waiting_calls and waiting_chunks of its session, job and user.
  Count::Token of_session, of_job, of_user;
  Count::Tokens chunks_of_job, chunks_of_user;
};

// A fetch or step. A step pins its chunks under an id of its own, so that steps and sessions
// exclude each other by the same rule.
struct Waiter : PendingCall {
  SessionId session;  // Pins the chunks: the calling session, or the id of the step.
  // chunks[first_written] and those after it are wanted for writing.
  size_t first_written = 0;
  std::variant<GrantLeases, RunStep> then;
  // Homes of chunks that are common, and that the session is to write at the device, by their
  // number in `chunks`; empty: there is none.
  std::vector<Home> homes;
  bool admitted = false, waited_for_ssd = false, waited_for_copy = false;
  Instant started, revoked_at;
  // An admitted call counts in TierQueues::admitted, and an admitted step in Job::steps.
  Count::Token of_tier, step;
  // At the last try: the number of its chunks that had no pin (or fewer, if the try ended early),
  // and the tier's pins_made.
  uint32_t new_pins = 0;
  uint64_t pins_before = 0;
  // While it is not admitted. It goes before `chunks`, by which it is found.
  QueuePlace waiting;

  bool runs_step() const { return std::holds_alternative<RunStep>(then); }
  Access AccessOf(size_t i) const { return i < first_written ? Access::kRead : Access::kWrite; }
};

// The result of a try to admit a Waiter. kTorn: the content of a chunk that it reads is lost.
enum class Admission : uint8_t { kAdmitted, kNoRoom, kConflict, kTorn };
struct Verdict {
  Admission admission = Admission::kAdmitted;
  uint32_t chunk = 0;  // Unless it is admitted: the number in Waiter::chunks of the cause.

  WaitsFor reason() const {
    return admission == Admission::kConflict ? WaitsFor::kLease : WaitsFor::kRoom;
  }
};

// A step part that is being computed.
struct RunningStep {
  CallId call;
  SessionId holder, owner;
  HeldChunks chunks;
  size_t first_written = 0;
  PartPurpose purpose;
  Count::Token of_session;  // In its waiting_calls, unless the session has ended.
  Count::Token of_job;      // In Job::steps.
};

// An eviction on request.
struct EvictOperation : PendingCall {};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_PENDING_CALLS_H_

// AccessPredictor: which chunk a job uses next, predicted from the iterations that it has run.
//
// An iteration of training uses its chunks in the order of an earlier iteration. The predictor
// records the uses of each iteration as a RecordedIteration, follows the current one along a
// recorded one, and so knows the next use of each member, which is what Belady's rule needs
// (PatrickStar, arXiv 2108.05818, section 8.3, does this for two tiers and one recorded iteration).
// When the current iteration leaves the recorded order, the predictor finds its place again: at
// once if the use is a few places ahead, and anywhere else when two uses in a row agree. A member
// that the recorded iteration does not use is predicted from the time between its last two uses.
//
// The parts of an optimizer step run in threads beside the script, so that their uses come in any
// order among the script's. They have their recorded places, and may come before or after these: a
// repeated iteration has the script's uses in their order, and those of parts in any.
//
// Several iterations are recorded (training and evaluation, or two models in turn), each with the
// one that last followed it. An iteration that nearly repeats (mixture of experts) replaces its
// earlier form. An iteration that was cut short is not recorded.
//
// Costs: Use is O(1) plus the places that it skips; EndIteration is one pass over all members;
// 24 bytes per member and 12 per use of a recorded iteration.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_POLICY_ACCESS_PREDICTOR_H_
#define MEMTIDE_DAEMON_POLICY_ACCESS_PREDICTOR_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "base/ids.h"
#include "daemon/policy/residency_plan.h"
#include "daemon/policy/virtual_time.h"

namespace memtide {

class AccessPredictor {
 public:
  // Longer iterations are not recorded: a script that never reports an end must not fill memory.
  static constexpr uint32_t kMaxUses = 1 << 20;
  static constexpr uint32_t kMaxRecordedIterations = 4;

  // Reports a use of `member` at `clock`, in microseconds. The clock stops while the job waits for
  // memory, so that a use has the same time in each iteration, however long its fetches took.
  void Use(Member member, uint64_t clock, bool writes = false);
  // Reports the same of a part of a step, which runs beside the script.
  void UseByPart(Member member, uint64_t clock, bool writes = false);
  // Reports that the member's content was freed: it is dead until its next write. Frees are
  // predicted like uses.
  void Free(Member member, uint64_t clock);
  // Ends the current iteration. Does nothing if it has no events.
  void EndIteration(uint64_t clock);

  // Whether an iteration is recorded. Without one, virtual times say nothing.
  bool has_prediction() const { return followed_ != kNone; }
  VirtualTime now() const { return base_ + at_; }
  // Predicted time of the member's next event, a use or a free; at least now(). kUnknown if there
  // is no prediction.
  VirtualTime NextUse(Member member) const {
    const uint32_t number = member.value();
    return number < histories_.size() ? std::max(histories_[number].next, now()) : kUnknown;
  }
  // Whether that next event is a free.
  bool IsFreedNext(Member member) const;
  static constexpr VirtualTime kUnknown{uint64_t{1} << 62};
  // Predicted end of the current iteration, and the member's first event after it.
  // REQUIRES: has_prediction().
  VirtualTime iteration_end() const { return base_ + followed().uses.size(); }
  VirtualTime UseAfterIteration(Member member) const { return InLaterIteration(member); }

  // The member predicted to be used at `time`, which is between now() and the end of the next
  // iteration; kNobody if the event at that time is a free, nullopt outside that range.
  static constexpr Member kNobody{~uint32_t{0} >> 2};
  absl::optional<Member> At(VirtualTime time) const;
  // Whether the use at `time` is predicted to write. REQUIRES: At(time) has a value.
  bool WritesAt(VirtualTime time) const;
  // Microseconds from now() to `time`, as measured in earlier iterations. REQUIRES: At(time) has a
  // value.
  uint64_t MicrosUntil(VirtualTime time) const;

  // Whether the followed iteration is predicted to repeat, and its events in order.
  // REQUIRES (Events): has_prediction().
  bool repeats() const { return has_prediction() && followed().successor == followed_; }
  std::vector<ResidencyPlan::Event> Events() const;
  // Index of the member's last event among its events of that iteration, from 0; nullopt if it has
  // had no event.
  absl::optional<uint32_t> LastEvent(Member member) const;

  // Members whose next use has changed since the last TakeChanges, some of them twice; or all.
  struct Changes {
    bool all = false;
    std::vector<Member> members;
  };
  Changes TakeChanges();

  struct Iteration {
    uint64_t number = 0;         // From 1; 0 before the first iteration.
    uint32_t uses = 0;           // Events in the iteration.
    uint32_t expected = 0;       // Events in the iteration that was followed; 0 if none was.
    uint32_t as_expected = 0;    // Events that the followed iteration has, in its order.
    bool misprediction = false;  // The two differ in an event, or in the order of the script's.
    bool remembered = false;     // As a RecordedIteration.
  };
  const Iteration& last_iteration() const { return last_iteration_; }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  // A use fewer than this many places ahead is taken for the current place without confirmation.
  static constexpr uint32_t kNear = 8;

  // A use this many places ahead is no use a few places ahead, even if all between are of parts.
  static constexpr uint32_t kFar = 256;

  struct RecordedIteration {
    std::vector<uint32_t> uses;   // Events, in order.
    std::vector<bool> writes;     // By use.
    std::vector<uint32_t> next;   // By use: place of the same member's next event, or kNone.
    std::vector<uint32_t> first;  // By member: place of its first event, or kNone.
    std::vector<uint32_t> clock;  // By use, then the end: microseconds since the first use.
    uint64_t hash = 0;            // As HashOf.
    uint64_t last_seen = 0;       // Number of the last iteration that matched it.
    uint32_t successor = 0;       // Index of the RecordedIteration that followed it.
  };
  // An event is the member's number and two bits for its kind.
  enum Kind : uint32_t { kUse = 0, kFree = 1, kUseByPart = 2 };
  static uint32_t EventOf(Member member, Kind kind) { return member.value() << 2 | kind; }
  static Kind KindOf(uint32_t event) { return static_cast<Kind>(event & 3); }
  static bool IsByPart(uint32_t event) { return KindOf(event) == kUseByPart; }
  static Member MemberOf(uint32_t event) { return Member(event >> 2); }
  // Equal for iterations that differ in the order of their parts' uses alone.
  static uint64_t HashOf(const std::vector<uint32_t>& events);
  static bool AreAlike(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b);
  absl::optional<uint32_t> EventAt(VirtualTime time) const;
  void Record(uint32_t event, uint64_t clock, bool writes);
  void NoteUse(Member member, Kind kind, uint64_t clock, bool writes);
  // The uses of a member until now, and the predicted next one.
  struct History {
    VirtualTime next = kUnknown;
    VirtualTime last;  // The time of its last use; 0: it was never used.
    uint32_t gap = 0;  // Between its last two uses; 0 before the second.
    // Last event: iteration number (low 16 bits) and 1-based index in it; 0 means none.
    uint16_t iteration = 0, events = 0;
  };

  History& Get(Member member);
  const RecordedIteration& followed() const { return iterations_[followed_]; }
  // Time of the member's first event in the next two iterations; kUnknown if it has none there.
  VirtualTime InLaterIteration(Member member) const;
  VirtualTime AfterPlace(uint32_t place) const;
  void Expect(Member member, VirtualTime time);
  // The current event is the one at `place`; the events before it were skipped.
  void ArriveAt(uint32_t place);
  // A part's use has its place before or after the current one, which it does not move.
  bool FindByPart(uint32_t event);
  // Whether the event at the place is a part's use that has not come yet.
  bool IsAwaited(uint32_t place) const;
  bool FindNear(uint32_t event);
  bool FindAnywhere(uint32_t event);
  void ExpectUnforeseen(uint32_t event);
  void ExpectAfterGap(uint32_t event);
  VirtualTime Estimate(const History& history) const;
  void ExpectAll();
  void ExpectOthers();
  uint32_t Learn();
  void Fill(RecordedIteration* iteration) const;

  std::vector<RecordedIteration> iterations_;
  uint32_t followed_ = kNone;  // Index of the iteration that is followed.
  uint32_t previous_ = kNone;  // Index of what the last iteration was.
  uint32_t at_ = 0;            // Place of the next predicted event.
  std::vector<bool> seen_;     // By place: uses by parts that have come, up to the last of them.
  VirtualTime base_;           // The time of the followed iteration's first event.
  uint32_t guess_ = kNone;     // Place after an unexpected event; the next event confirms it.
  bool guess_wraps_ = false;

  std::vector<uint32_t> record_;
  std::vector<bool> writes_;      // By recorded use.
  std::vector<uint32_t> clocks_;  // Microseconds from `began_`, by recorded use.
  uint64_t began_ = 0;            // Clock of the first recorded use, in microseconds.
  bool too_long_ = false;
  uint32_t matched_ = 0;
  size_t passed_over_ = 0;  // record_.size() at the last ExpectAll in this iteration.
  Iteration last_iteration_;
  std::vector<History> histories_;  // By member.
  Changes changes_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_ACCESS_PREDICTOR_H_

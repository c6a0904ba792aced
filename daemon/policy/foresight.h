// Foresight: which chunk a job will use next, from what it used before.
//
// An iteration of training uses chunks in the same order as the last one. Foresight records each
// iteration's uses, follows the current one along a recorded one (its shape), and so knows for each
// member when it is expected next, as Belady's rule wants to know it (PatrickStar, arXiv
// 2108.05818, section 8.3, does so for two tiers and one shape). Where the current iteration leaves
// the order, it finds its place again: a few uses further at once, anywhere else when two uses in a
// row agree. A member that the shape does not know is expected after its last gap.
//
// Several shapes are kept (training and evaluation, two models in turn), each with the one that
// followed it last time. A shape that nearly repeats (a mixture of experts) is replaced by its
// latest form; one that was cut short is not kept.
//
// Time is virtual: one unit per use of the shape, so that it can be compared across members.
// Members are small numbers, dense per job. Use is O(1) but for what it skips; the end of an
// iteration is one pass over all members. Pure, deterministic, thread-compatible. 24 bytes per
// member; 12 per use of a shape.
#ifndef MEMTIDE_DAEMON_POLICY_FORESIGHT_H_
#define MEMTIDE_DAEMON_POLICY_FORESIGHT_H_

#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/policy/plan.h"

namespace memtide {

class Foresight {
 public:
  // Iterations of more uses are not learnt: a script that reports no end must not fill memory.
  static constexpr uint32_t kMaxUses = 1 << 20;
  static constexpr uint32_t kMaxShapes = 4;

  // `member` is used now, at `clock` microseconds of a clock that stands while the job waits for
  // memory: so the same use has the same time, however well the last iteration was served.
  void Use(uint32_t member, uint64_t clock, bool writes = false);
  // What the member was is given up: until it is used again, nobody needs it. That, too, is
  // expected to be so in the next iteration.
  void Free(uint32_t member, uint64_t clock);
  // The uses so far were one iteration. Without any: nothing happens.
  void EndIteration(uint64_t clock);

  // Whether an iteration is known, so that times mean something.
  bool known() const { return shape_ != kNone; }
  uint64_t now() const { return base_ + at_; }
  // When the member is expected to be used, or given up: at least now(). kUnknown: nobody can say.
  uint64_t NextUse(uint32_t member) const;
  // Whether it is expected to be given up then.
  bool IsFreedNext(uint32_t member) const;
  static constexpr uint64_t kUnknown = uint64_t{1} << 62;
  // When the current iteration is expected to end, and the member's first use after that.
  // REQUIRES: known().
  uint64_t iteration_end() const { return base_ + shape().uses.size(); }
  uint64_t UseAfterIteration(uint32_t member) const { return InLaterIteration(member); }

  // Who is expected to be used at a time, now() or later: up to the end of the next iteration.
  // kNobody: that time is one of giving up.
  static constexpr uint32_t kNobody = ~uint32_t{0} >> 1;
  absl::optional<uint32_t> At(uint64_t time) const;
  // Microseconds until then, as the iterations before went. REQUIRES: At(time) is known.
  uint64_t MicrosUntil(uint64_t time) const;

  // Whether the followed iteration is expected to be followed by the same again; and what happens
  // in it. REQUIRES of Events: known().
  bool repeats() const { return known() && shape().successor == shape_; }
  std::vector<Plan::Event> Events() const;
  // Of the member's uses, and times of giving up, the number of the last one in its iteration, from
  // zero; nullopt: there was none.
  absl::optional<uint32_t> LastEvent(uint32_t member) const;

  // Members whose next use has changed since Changed was called last, some twice; or all of them.
  struct Changes {
    bool all = false;
    std::vector<uint32_t> members;
  };
  Changes TakeChanges();

  struct Iteration {
    uint64_t number = 0;       // From one on; zero: there was none yet.
    uint32_t uses = 0;         // That it had.
    uint32_t expected = 0;     // Uses of the shape that it was expected to have; zero: none was.
    uint32_t as_expected = 0;  // Of its uses: those found in that shape, in its order.
    bool surprise = false;     // It was not that shape, use by use.
    bool remembered = false;   // As a shape.
  };
  const Iteration& last_iteration() const { return last_iteration_; }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  // So far ahead, the current iteration's place is found without a second sign.
  static constexpr uint32_t kNear = 8;

  struct Shape {
    std::vector<uint32_t> uses;   // Events, in order.
    std::vector<bool> writes;     // By use.
    std::vector<uint32_t> next;   // By use: the place of the same member's next one; kNone: none.
    std::vector<uint32_t> first;  // By member; kNone: does not occur.
    std::vector<uint32_t> clock;  // By use, and of the end: microseconds since the first one.
    uint64_t hash = 0;
    uint64_t last_seen = 0;  // Iteration.
    uint32_t successor = 0;  // Shape.
  };
  // A use of a member: twice its number; one more: it is given up.
  static uint32_t MemberOf(uint32_t event) { return event >> 1; }
  absl::optional<uint32_t> EventAt(uint64_t time) const;
  void Record(uint32_t event, uint64_t clock, bool writes);
  struct Member {
    uint64_t next = kUnknown;
    uint64_t last = 0;
    uint32_t gap = 0;  // Zero: used once at most.
    // Of its last event: the low bits of its iteration's number, and its own in that, from one on;
    // zero: there was none.
    uint16_t iteration = 0, events = 0;
  };

  Member& Get(uint32_t member);
  const Shape& shape() const { return shapes_[shape_]; }
  // The time of the first use in the iteration after this one, or in that after it; kUnknown: none
  // is expected.
  uint64_t InLaterIteration(uint32_t member) const;
  uint64_t AfterPlace(uint32_t place) const;
  void Expect(uint32_t member, uint64_t time);
  // The current use is that of `place`: those before it did not happen.
  void ArriveAt(uint32_t place);
  bool FindNear(uint32_t event);
  bool FindAnywhere(uint32_t event);
  void ExpectUnforeseen(uint32_t event);
  uint64_t Estimate(const Member& member) const;
  void ExpectAll();
  void ExpectOthers();
  uint32_t Learn();
  void Fill(Shape* shape) const;

  std::vector<Shape> shapes_;
  uint32_t shape_ = kNone;     // That is followed.
  uint32_t previous_ = kNone;  // That the iteration before this one had.
  uint32_t at_ = 0;            // Place of the next expected use.
  uint64_t base_ = 0;          // Time of the followed shape's first use.
  uint32_t guess_ = kNone;     // Place after an unexpected use, to be confirmed by the next one.
  bool guess_wraps_ = false;

  std::vector<uint32_t> record_;
  std::vector<bool> writes_;      // By recorded use.
  std::vector<uint32_t> clocks_;  // Of the recorded uses.
  uint64_t began_ = 0;            // Clock of the first of them.
  bool too_long_ = false;
  uint32_t matched_ = 0;
  size_t passed_over_ = 0;  // Recorded uses before all members were looked at.
  Iteration last_iteration_;
  std::vector<Member> members_;
  Changes changes_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_FORESIGHT_H_

// SlotPlan: one slot of a GPU's memory for each member of a job, planned for a whole iteration that
// repeats, so that members which share a slot take turns there as seldom as possible.
//
// A chunk that always comes to the same slot finds its mapping there, and a map costs more than a
// call (client/cuda/kept_mappings.h). So the tier is a cache whose lines are planned: the sequence
// of a slot's uses decides when one member leaves for the next. A turn costs a transfer in, unless
// the content is made anew, a transfer out, if the leaving member was written, and more where the
// gap between the two uses is too short for these.
//
// Members get slots one by one, in the order of their first uses, each where it costs least; then
// each chooses again in turn, and pairs of members exchange their slots, until nothing improves the
// plan any more. The choices of a member cost one pass over the uses of each slot.
//
// An iteration is a circle: its end is followed by its beginning.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_POLICY_SLOT_PLAN_H_
#define MEMTIDE_DAEMON_POLICY_SLOT_PLAN_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/optional.h"
#include "base/ids.h"
#include "daemon/policy/residency_plan.h"
#include "daemon/pool/slot_pool.h"

namespace memtide {

class SlotPlan {
 public:
  // The slot of a member, in which it is or by the plan before; nullopt: none.
  using SlotNow = absl::FunctionRef<absl::optional<SlotNumber>(Member)>;
  // Members mostly keep the slots of `now`. REQUIRES: there is a slot, and none is named twice.
  SlotPlan(const std::vector<ResidencyPlan::Event>& events, const std::vector<SlotNumber>& slots,
           const ResidencyPlan::Transfers& transfers, SlotNow now);

  // Continues for about `choices` units of work; one unit is a pass over 64 uses.
  // REQUIRES: !done().
  void Work(uint32_t choices);
  bool done() const { return done_; }

  // Exchanges the numbers of slots so that members which never leave are where they are planned to
  // be: they would not move there. False: nothing has changed. REQUIRES: done().
  bool Renumber(SlotNow there);

  // The member's slot; nullopt: it has no use in the iteration.
  absl::optional<SlotNumber> SlotOf(Member member) const;
  // From the member's event `nth` of the iteration, from 0, to its next one.
  struct Stay {
    bool stays = false;  // No other member has the slot meanwhile.
    uint32_t ahead = 0;  // For how many events before the next one the slot is free for it.
  };
  absl::optional<Stay> After(Member member, uint32_t nth) const;

  // For how many events the slot has no use, from `left` events before the iteration's end on.
  uint32_t UnwantedFor(SlotNumber slot, uint32_t left) const;

  // The transfers of an iteration that follows the plan, both ways.
  uint32_t transfers() const;

 private:
  // A use. Frees are no uses: the content is made anew at the next one.
  struct Use {
    uint32_t time = 0;  // In events.
    uint32_t member = 0;
    bool writes = false, fresh = false, last = false;  // `last`: the content is freed next.
  };
  struct SlotUses {
    SlotNumber number;
    std::vector<Use> uses;  // By time.
    double cost = 0;
  };
  static constexpr uint32_t kNone = ~uint32_t{0};

  static std::vector<Use>::const_iterator FirstFrom(const std::vector<Use>& uses, uint32_t time);
  double CostOf(const std::vector<Use>& uses) const;
  double CostOfTurn(const Use& from, const Use& to, bool written) const;
  std::vector<Use> With(uint32_t slot, uint32_t member) const;
  std::vector<Use> Without(uint32_t slot, uint32_t member) const;
  void Place(uint32_t member, uint32_t slot);
  void Remove(uint32_t member);
  void KeepSlot(uint32_t member);
  void Choose(uint32_t member);
  void TryExchange(uint32_t a, uint32_t b);
  uint32_t Random(uint32_t below);

  uint32_t length_;              // Events.
  std::vector<uint64_t> clock_;  // The beginning of each event, in microseconds.
  uint64_t in_micros_, out_micros_;
  std::vector<std::vector<Use>> uses_;        // By member.
  std::vector<std::vector<uint32_t>> times_;  // By member: the times of all its events.
  std::vector<uint32_t> order_;               // Members with uses, by the first of them.
  std::vector<uint32_t> slot_, wanted_;       // By member: its slot, and the one it has now, as
  std::vector<SlotUses> slots_;               // indices of these.
  std::map<SlotNumber, uint32_t> indices_;
  uint32_t placed_ = 0, turn_ = 0, exchanges_ = 0;
  int sweep_ = 0;
  bool improved_ = false, done_ = false;
  int64_t credit_ = 0;
  uint64_t random_ = 1;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_SLOT_PLAN_H_

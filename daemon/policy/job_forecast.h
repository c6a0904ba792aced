// JobForecast: what one job will use next, which copies its plan retains until then, and which
// chunks must move now to be in time.
//
// It joins the access predictor, the residency plan in force with the next one while that is
// computed, the plan of slots beside them where the upper tier is a GPU's, the clocks of the links,
// and for each tier the lookahead: the virtual times up to which uses are prefetched, and must be.
// It knows members and tiers; what it must know of chunks comes in as values and by the functors of
// LookAhead and PrefetchNext.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_POLICY_JOB_FORECAST_H_
#define MEMTIDE_DAEMON_POLICY_JOB_FORECAST_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "base/check.h"
#include "base/ids.h"
#include "daemon/policy/access_predictor.h"
#include "daemon/policy/link_clocks.h"
#include "daemon/policy/residency_plan.h"
#include "daemon/policy/slot_plan.h"
#include "daemon/policy/virtual_time.h"
#include "daemon/pool/slot_pool.h"
#include "daemon/pool/tier.h"

namespace memtide {

class JobForecast {
 public:
  // Report what the job does; see AccessPredictor.
  void Use(Member member, uint64_t clock, bool writes) { predictor_.Use(member, clock, writes); }
  void UseByPart(Member member, uint64_t clock, bool writes) {
    predictor_.UseByPart(member, clock, writes);
  }
  void Free(Member member, uint64_t clock) { predictor_.Free(member, clock); }
  // Ends the iteration. The next plan is for `slots`, with all uses on the tier `upper`; nullopt:
  // no plan is possible. `there`: the slots of `upper` in which members are, if that tier has fixed
  // slots. False: the iteration had no event. REQUIRES: upper != Tier::kSsd.
  bool EndIteration(uint64_t clock, const absl::optional<ResidencyPlan::Slots>& slots, Tier upper,
                    SlotPlan::SlotNow there);
  // Works on the next plan after a call that reported `uses` uses. Returns the members whose next
  // use or planned stay has changed since the last TakeChanges.
  AccessPredictor::Changes TakeChanges(size_t uses);

  const AccessPredictor& predictor() const { return predictor_; }

  bool has_plan() const { return plan_.has_value(); }
  // The tiers that the plan lets keep the member until its next event; nullopt: no plan covers it.
  absl::optional<ResidencyPlan::Stay> PlannedStay(Member member) const;

  // Whether the plan gives members their slots of the upper tier.
  bool has_fixed_slots() const { return plan_.has_value() && slot_plan_.has_value(); }
  // For how many events from now on the plan has no use in this slot. REQUIRES: has_fixed_slots().
  uint32_t UnwantedFor(SlotNumber slot) const;
  // The slot of the tier that the plan gives the member; nullopt: any will do.
  absl::optional<SlotNumber> PlannedSlot(Tier tier, Member member) const;

  // Whether the plan has a slot of the tier from now on for the member, whose next use is at
  // `time`. True where nothing is planned.
  bool HasPlannedSlot(Tier tier, Member member, VirtualTime time) const;

  LinkClocks& links() { return links_; }
  const LinkClocks& links() const { return links_; }

  // Computes up to which use chunks must be prefetched to the tier now. Prefetching too early
  // evicts a chunk that still has a use, so that a prefetch starts as late as link bandwidth
  // allows. The next chance to start one is when the job reports its next use.
  //
  // absl::optional<bool> needs_transfer(member, time): whether the member must be moved to the tier
  // for its use at `time`; nullopt: it has no chunk.
  // REQUIRES: tier != Tier::kSsd.
  template <typename NeedsTransfer>
  void LookAhead(Tier tier, NeedsTransfer needs_transfer);

  enum class Prefetch : uint8_t {
    kSkipped,  // The use needs none.
    kBlocked,  // There is no room now: PrefetchNext() tries the same use again.
    kNotYet,   // The same, where there may be room for later uses.
    kStarted,
  };
  // Calls Prefetch try_prefetch(member, time) for the uses that LookAhead() found, in order, until
  // it returns something else than kSkipped. True: a prefetch was started.
  // REQUIRES: tier != Tier::kSsd.
  template <typename TryPrefetch>
  bool PrefetchNext(Tier tier, TryPrefetch try_prefetch);

  // The chunk with its next use at `time` may now need a prefetch, or can have one.
  // REQUIRES: tier != Tier::kSsd.
  void PrefetchAgainFrom(Tier tier, VirtualTime time) {
    VirtualTime& until = lookahead(tier).prefetched_until;
    until = std::min(until, time);
  }

 private:
  bool WorkOnPlans(uint32_t choices);
  void BeginSlotPlan(const std::vector<ResidencyPlan::Event>& events,
                     const std::vector<SlotNumber>& slots,
                     const ResidencyPlan::Transfers& transfers, SlotPlan::SlotNow there);

  // How many uses ahead LookAhead() examines, and after how many uses it runs again.
  static constexpr uint64_t kMaxLookahead = 512, kLookaheadPeriod = 4;

  // Uses before prefetched_until are resident or on their way. Uses before
  // needed_until must be, or they will come too late, given the speed of the links; it is computed
  // again at recompute_at. The job reports its uses up to next_report at once.
  struct Lookahead {
    VirtualTime prefetched_until, needed_until, recompute_at, next_report;
  };
  // Nothing is prefetched to the SSD.
  Lookahead& lookahead(Tier tier) {
    MEMTIDE_CHECK(tier != Tier::kSsd);
    return lookaheads_[static_cast<size_t>(tier)];
  }

  AccessPredictor predictor_;
  absl::optional<ResidencyPlan> plan_, next_plan_;
  absl::optional<SlotPlan> slot_plan_, next_slot_plan_;  // Where slots are fixed, beside plan_.
  Tier upper_ = Tier::kHost;                             // The tier of all uses in the plans.
  // The plan of slots in the making is of an iteration before the last, or was given up.
  bool slots_are_late_ = false;
  bool plan_changed_ = false;  // Since the last TakeChanges().
  LinkClocks links_;
  std::array<Lookahead, kTiers - 1> lookaheads_;  // By memory tier.
};

template <typename NeedsTransfer>
void JobForecast::LookAhead(Tier tier, NeedsTransfer needs_transfer) {
  Lookahead& ahead = lookahead(tier);
  const VirtualTime now = predictor_.now();
  ahead.prefetched_until = std::max(ahead.prefetched_until, now);
  if (now < ahead.recompute_at) return;
  ahead.recompute_at = now + kLookaheadPeriod;
  ahead.needed_until = now;
  // Copies come from the tier below, which prefetches on its own schedule.
  const uint64_t transfer = links_.micros({tier == Tier::kDevice ? Tier::kHost : Tier::kSsd, tier});
  uint64_t busy = 0, next_report = 0;  // Microseconds from now.
  const bool fixed = tier == upper_ && has_fixed_slots();
  for (VirtualTime time = now; time < now + kMaxLookahead; ++time) {
    const absl::optional<Member> member = predictor_.At(time);
    if (!member.has_value()) return;
    if (next_report == 0) {
      next_report = predictor_.MicrosUntil(time);
      ahead.next_report = time;
      busy += next_report;
    }
    if (predictor_.NextUse(*member) != time) continue;
    const absl::optional<bool> moves = needs_transfer(*member, time);
    if (!moves.has_value()) continue;
    if (*moves) busy += transfer;
    // A member with a slot of its own displaces no other, however early it comes.
    if (fixed || busy >= predictor_.MicrosUntil(time)) ahead.needed_until = time + 1;
  }
}

template <typename TryPrefetch>
bool JobForecast::PrefetchNext(Tier tier, TryPrefetch try_prefetch) {
  Lookahead& ahead = lookahead(tier);
  bool in_order = true;
  for (VirtualTime time = ahead.prefetched_until; time < ahead.needed_until; ++time) {
    const absl::optional<Member> member = predictor_.At(time);
    if (!member.has_value()) return false;
    // The member may have been used out of order meanwhile.
    const Prefetch tried =
        predictor_.NextUse(*member) > time ? Prefetch::kSkipped : try_prefetch(*member, time);
    if (tried == Prefetch::kBlocked) return false;
    in_order = in_order && tried != Prefetch::kNotYet;
    if (in_order) ahead.prefetched_until = time + 1;
    if (tried == Prefetch::kStarted) return true;
  }
  return false;
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_JOB_FORECAST_H_

// What must be true between any two events.
#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "daemon/engine/state.h"

namespace memtide {

namespace {

// What the chunks say about one tier of a job; compared with what the tier says of itself.
struct TierTally {
  uint32_t slots = 0, committed = 0, pushing = 0, queued = 0, prefetches = 0;
  std::set<uint32_t> numbers;
};

}  // namespace

// Device memory that is lent slot by slot. `used`: the slots that chunks have.
void EngineState::CheckSlotRegions(const Job& job, const std::set<uint32_t>& used) const {
  const JobTier& part = job.tier(Tier::kDevice);
  const SlotPool& slots = *part.slots;
  const bool ending = job.state == Job::State::kEnding;
  std::set<uint32_t> regions;
  for (const uint32_t region : part.parts) {
    if (region == kNoPart) continue;
    MEMTIDE_CHECK(regions.insert(region).second) << "region " << region << " is two slots";
    MEMTIDE_CHECK(part.leaving.count(region) == 0) << "region " << region << " left and stayed";
  }
  MEMTIDE_CHECK(regions.size() == slots.backed_slots());
  for (const uint32_t slot : used) {
    MEMTIDE_CHECK(part.parts[slot] != kNoPart) << "slot " << slot << " has no memory";
  }
  MEMTIDE_CHECK(slots.size() <= part.target);
  MEMTIDE_CHECK(ending || slots.surplus_slots() == 0 || slots.free_slots() == 0)
      << "a free slot is kept that is not wanted";
  const uint64_t there = slots.backed_slots() + (part.making != kNoPart);
  MEMTIDE_CHECK(part.share == job.chunk_size * std::max<uint64_t>(part.target, there));
  MEMTIDE_CHECK(part.target + (ending ? 0 : part.leaving.size()) <= options_.limits.device_regions);
  for (const auto& [region, holders] : part.leaving) {
    const auto found = parts_.find(region);
    MEMTIDE_CHECK(found != parts_.end() && found->second == &job);
    for (const SessionId holder : holders) {
      MEMTIDE_CHECK(std::count(job.sessions.begin(), job.sessions.end(), holder) == 1)
          << "a session that ended has region " << region;
    }
  }
}

// Memory in parts of many slots, of which host slots may be withheld.
void EngineState::CheckWithheld(const Job& job, Tier tier) const {
  const JobTier& part = job.tier(tier);
  const SlotPool& slots = *part.slots;
  const bool ending = job.state == Job::State::kEnding;
  MEMTIDE_CHECK(part.most_slots() <= part.target);
  MEMTIDE_CHECK(slots.numbers() <= part.most && part.target <= part.most);
  if (part.is_elastic()) {
    MEMTIDE_CHECK(part.share == job.chunk_size * std::max(part.target, part.made_slots()));
    MEMTIDE_CHECK(part.most_slots() == part.target || !job.last_error.ok());
  }
  MEMTIDE_CHECK(part.withheld == 0 || (tier == Tier::kHost && job.home == Tier::kSsd));
  MEMTIDE_CHECK(ending || slots.surplus_slots() == 0 || slots.free_slots() == 0)
      << "a free slot is kept that is withheld";
  const uint32_t changing = slots.unbacked_slots() - slots.gone_slots();
  MEMTIDE_CHECK(changing >= part.filling && job.parts_pending >= changing);
}

void EngineState::CheckInvariants() const {
  for (const Tier tier : kAllTiers) {
    const PoolUsage usage = Usage(tier);
    MEMTIDE_CHECK(usage.free <= usage.capacity);
    MEMTIDE_CHECK(usage.used + usage.reserved + usage.withheld + usage.scrubbing + usage.free ==
                  usage.capacity);
  }
  std::map<const Job*, std::array<TierTally, kTiers>> tallies;
  std::map<const Job*, decltype(Job::flights)> flights;
  std::map<SessionId, uint32_t> leases;
  uint32_t live = 0;
  for (uint32_t place = 0; place < chunks_.size(); ++place) {
    const Chunk& chunk = chunks_[place];
    if (chunk.job == nullptr) {
      MEMTIDE_CHECK(chunk.valid == 0 && chunk.holds.empty() && !chunk.flight.has_value());
      continue;
    }
    live += chunk.live();
    MEMTIDE_CHECK(chunk.job->members[chunk.member] == place);
    MEMTIDE_CHECK(!chunk.dying || chunk.flight.has_value() || chunk.steps > 0)
        << "a freed chunk lingers";
    MEMTIDE_CHECK(chunk.dying || chunk.steps == 0 || chunk.pinned_at(Tier::kHost))
        << "a step runs on memory that may move";
    MEMTIDE_CHECK(!chunk.blank || chunk.overwrite) << "nobody writes a blank chunk";
    if (chunk.partner != kNoPlace) {
      const Chunk& partner = chunks_[chunk.partner];
      MEMTIDE_CHECK(chunk.live() && partner.live() && partner.job == chunk.job);
      MEMTIDE_CHECK(partner.partner == place && partner.is_twin != chunk.is_twin);
    } else {
      MEMTIDE_CHECK(!chunk.is_twin);
    }
    if (chunk.flight.has_value()) ++flights[chunk.job][static_cast<int>(chunk.flight->kind)];
    MEMTIDE_CHECK(chunk.slot(chunk.job->home)) << "chunk " << place << " has no home";
    for (const Tier tier : kAllTiers) {
      TierTally& tally = tallies[chunk.job][static_cast<int>(tier)];
      const bool queued = chunk.waits_for >> static_cast<int>(tier) & 1;
      MEMTIDE_CHECK(!chunk.valid_at(tier) || chunk.slot(tier)) << "a copy without a slot";
      MEMTIDE_CHECK(!queued || !chunk.slot(tier)) << "waits for what it has";
      tally.committed += chunk.pinned_at(tier);
      tally.pushing += chunk.push_from == tier;
      tally.prefetches += chunk.prefetch_to == tier;
      const JobTier& part = chunk.job->tier(tier);
      MEMTIDE_CHECK(part.victims.Contains(chunk.member) == MayLeave(chunk, tier));
      MEMTIDE_CHECK(part.held.Contains(chunk.member) == IsHeld(chunk, tier));
      tally.queued += queued;
      if (!chunk.slot(tier)) continue;
      ++tally.slots;
      MEMTIDE_CHECK(tally.numbers.insert(chunk.slot(tier).number()).second)
          << "a slot has two owners";
    }
    for (const Hold& hold : chunk.holds) {
      MEMTIDE_CHECK(hold.granted || hold.pending > 0);
      MEMTIDE_CHECK(!hold.granted || chunk.valid_at(chunk.hold_tier))
          << "chunk " << place << " is leased where it has no copy";
      MEMTIDE_CHECK(!hold.granted || hold.access == Access::kRead ||
                    chunk.valid == 1u << static_cast<int>(chunk.hold_tier))
          << "a written chunk has stale copies";
      leases[hold.session] += hold.granted;
    }
  }
  MEMTIDE_CHECK(live == live_chunks_);
  for (const auto& [id, session] : sessions_) {
    MEMTIDE_CHECK(session.leases == leases[id]) << "session " << id;
  }
  for (const WaitingOpen& open : opens_) {
    const auto found = sessions_.find(open.call.session);
    MEMTIDE_CHECK(found != sessions_.end() && found->second.opening);
  }
  std::map<const Job*, uint32_t> steps;
  for (const auto& [id, step] : steps_) ++steps[step.job];
  for (const auto& [id, fetch] : fetches_) {
    steps[fetch->job] += fetch->admitted && fetch->work != nullptr;
  }
  for (const auto& [id, job] : jobs_) {
    MEMTIDE_CHECK(job->steps == steps[job.get()]);
    MEMTIDE_CHECK(job->flights == flights[job.get()]);
    for (const Tier tier : kAllTiers) {
      const JobTier& part = job->tier(tier);
      if (!part.exists()) continue;
      const TierTally& tally = tallies[job.get()][static_cast<int>(tier)];
      MEMTIDE_CHECK(part.slots->used_slots() == tally.slots);
      MEMTIDE_CHECK(part.committed == tally.committed);
      MEMTIDE_CHECK(part.committed <=
                    std::max({part.most_slots(), part.claim, part.slots->backed_slots()}));
      MEMTIDE_CHECK(part.pushing == tally.pushing);
      MEMTIDE_CHECK(part.prefetches == tally.prefetches);
      MEMTIDE_CHECK(part.slot_queue.size() == tally.queued);
      part.by_slot ? CheckSlotRegions(*job, tally.numbers) : CheckWithheld(*job, tier);
    }
    MEMTIDE_CHECK(!job->resize.has_value() || job->SurplusRegions() > 0 ||
                  !job->tier(Tier::kDevice).leaving.empty())
        << "a resize waits for nothing";
  }
}

}  // namespace memtide

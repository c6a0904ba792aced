#include "daemon/engine/shares/balloons.h"

#include <algorithm>
#include <cmath>

namespace memtide {

namespace {

// A balloon deflates only when the reserve is exceeded by half of it, or by this much, so that it
// does not follow every allocation of other programs.
constexpr Bytes kMostSlack = MiB(512);

}  // namespace

uint32_t Balloons::Inflatable(const JobShares& job) {
  const bool runs = job.state() == JobState::kRunning || job.state() == JobState::kLingering;
  const Share& host = job[Tier::kHost];
  return runs && job.home() == Tier::kSsd && host.exists() ? host.inflatable_slots() : 0;
}

SharePools::Changes Balloons::BalanceBalloons(Bytes available, Bytes reserve, const Rises& rises) {
  SharePools::Changes changes;
  Bytes coming, spareable;
  for (const auto& [id, job] : pools_.jobs()) {
    const Share& host = (*job)[Tier::kHost];
    if (!host.exists()) continue;
    // Memory on its way to the machine is counted as there, and memory on its way back as gone.
    // Otherwise each report would inflate the balloon again for the same shortage.
    available += host.chunk_size() * host.going_slots();
    coming += host.chunk_size() * host.coming_slots();
    spareable += host.chunk_size() * Inflatable(*job);
  }
  available -= std::min(available, coming);
  // The missing part of the reserve is divided in proportion to what each job can do without.
  if (available < reserve && !spareable.IsZero()) {
    const double fraction =
        std::min(1.0, static_cast<double>((reserve - available).count()) / spareable.count());
    for (const auto& [id, job] : pools_.jobs()) {
      Share& host = (*job)[Tier::kHost];
      const uint32_t slots = static_cast<uint32_t>(std::ceil(fraction * Inflatable(*job)));
      available += host.chunk_size() * slots;
      if (slots > 0) changes.push_back(Inflate(host, slots));
    }
  }
  for (const auto& [id, job] : pools_.jobs()) {
    const auto rise = rises.find(id);
    const absl::optional<SharePools::Change> change =
        AdjustBalloon(*job, reserve, rise == rises.end() ? Bytes(0) : rise->second, &available);
    if (change.has_value()) changes.push_back(*change);
  }
  return changes;
}

// A reported size affects only the job of the reporter, so that no client can evict the chunks of
// others by lying.
absl::optional<SharePools::Change> Balloons::AdjustBalloon(JobShares& job, Bytes reserve,
                                                           Bytes rise, Bytes* available) {
  Share& host = job[Tier::kHost];
  const Bytes wanted = reserve + rise;
  const Bytes enough = wanted + std::min(Bytes(reserve.count() / 2), kMostSlack);
  if (*available < wanted) {
    const uint32_t slots =
        std::min(Inflatable(job), CeilDiv(wanted - *available, host.chunk_size()));
    *available += host.chunk_size() * slots;
    if (slots > 0) return Inflate(host, slots);
  } else if (*available > enough) {
    const uint64_t slots =
        std::min<uint64_t>(host.balloon(), (*available - enough) / host.chunk_size());
    *available -= host.chunk_size() * slots;
    if (slots > 0) return Deflate(host, static_cast<uint32_t>(slots));
  }
  return absl::nullopt;
}

// The slots are taken from those that have memory: one that was never made has nothing for the
// machine.
SharePools::Change Balloons::Inflate(Share& share, uint32_t slots) {
  const uint32_t most = share.slots_with_balloon();
  SlotPool& pool = *share.slots_;
  pool.Resize(std::min(pool.size(), pool.backed_slots()) - slots);
  share.balloon_ = most - pool.size();
  return SharePools::ChangeOf(share);
}

SharePools::Change Balloons::Deflate(Share& share, uint32_t slots) {
  share.slots_->Resize(share.slots_->size() + slots);
  share.balloon_ -= slots;
  return SharePools::ChangeOf(share);
}

absl::optional<SharePools::Change> Balloons::DeflateFor(Share& share, size_t waiting,
                                                        size_t evicting) {
  const SlotPool& pool = *share.slots_;
  const size_t there = pool.spare_slots() + evicting;
  if (share.balloon_ == 0 || waiting <= there) return absl::nullopt;
  const uint32_t backed = pool.backed_slots();
  // Stops releasing slots that have pages, and populates one for each waiting chunk.
  uint64_t wanted = backed + (waiting - there);
  // Where no released slot can be populated, a whole segment must fit into the pool.
  if (pool.unbacked_slots() == 0) {
    wanted = std::max<uint64_t>(wanted, backed + share.next_segment_slots());
  }
  const uint32_t slots =
      static_cast<uint32_t>(std::min<uint64_t>(wanted, share.slots_with_balloon()));
  if (slots <= pool.size()) return absl::nullopt;
  return Deflate(share, slots - pool.size());
}

SlotNumber Balloons::ReleaseSlot(Share& share) {
  return share.slots_->Unback(share.slots_->Take());
}

void Balloons::SlotReleased(Share& share, SlotNumber slot) {
  share.slots_->Gone(slot);
  pools_.Charge(share);
}

absl::optional<SlotNumber> Balloons::PopulateSlot(Share& share) {
  // Slots are populated one at a time, so that a machine without memory fails one request only.
  if (share.deflating_ || share.slots_->gone_slots() == 0) return absl::nullopt;
  share.deflating_ = true;
  return share.slots_->TakeGone();
}

void Balloons::SlotPopulated(Share& share, SlotNumber slot) {
  share.deflating_ = false;
  share.slots_->Returned(slot);
  pools_.Charge(share);
}

SharePools::Change Balloons::PopulateFailed(Share& share, SlotNumber slot) {
  share.deflating_ = false;
  share.slots_->Gone(slot);
  pools_.Charge(share);
  // The pool shrinks to what exists, and victims serve its waiting chunks instead.
  const uint32_t missing = share.slots_->missing_slots();
  share.slots_->Resize(share.slots_->size() - missing);
  share.balloon_ += missing;
  return SharePools::ChangeOf(share);
}

}  // namespace memtide

#include "daemon/engine/shares/share_pools.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {

JobShares::JobShares(SharePools* pools, JobId job, Bytes chunk_size, Pool device)
    : pools_(pools),
      job_(job),
      shares_{{Share(job, device, chunk_size), Share(job, {Tier::kHost}, chunk_size),
               Share(job, {Tier::kSsd}, chunk_size)}} {
  MEMTIDE_CHECK(pools_->jobs_.emplace(job, this).second) << "job " << job << " has shares";
}

// The memory of the job is free again, because the ledger sums up the shares that it knows.
JobShares::~JobShares() { pools_->jobs_.erase(job_); }

Tier JobShares::home() const {
  for (const Tier tier : {Tier::kSsd, Tier::kHost}) {
    if ((*this)[tier].exists()) return tier;
  }
  return Tier::kDevice;
}

size_t JobShares::pending() const {
  size_t pending = 0;
  for (const Share& share : shares_) pending += share.pending();
  return pending;
}

uint64_t JobShares::device_regions() const {
  const Share& device = (*this)[Tier::kDevice];
  // Regions that sessions have not returned yet still exist.
  return device.by_slot() ? device.limit() + device.leaving().size() : 0;
}

SharePools::SharePools(const Capacities& capacities, const Limits& limits)
    : capacities_(capacities), limits_(limits), states_(capacities.devices.size()) {
  for (const Bytes device : capacities.devices) MEMTIDE_CHECK(!device.IsZero());
}

Bytes SharePools::AskedOf(const OpenCall& open, Tier tier) {
  return tier == Tier::kDevice ? open.device_share
         : tier == Tier::kHost ? open.host_share
                               : open.ssd_share;
}

Pool SharePools::PoolFor(const OpenCall& open, Tier tier) const {
  return tier == Tier::kDevice ? DeviceFor(open) : Pool{tier};
}

// A share of fixed size is charged for all of it, unless it changes slot by slot.
void SharePools::Charge(Share& share) {
  if (!share.by_slot() && !share.is_elastic()) return;
  const Bytes bytes = share.chunk_size() * std::max(share.target_, share.made_slots());
  // ServeFreed() offers the memory to starved jobs and waiting Opens.
  freed_ = freed_ || bytes < share.bytes_;
  share.bytes_ = bytes;
}

// Memory above the target of a share becomes free when its slots are released, and their regions
// returned.
Bytes SharePools::FreeSoon(Pool pool) const {
  Bytes coming = Free(pool);
  for (const auto& [id, job] : jobs_) {
    const Share* const share = job->In(pool);
    if (share == nullptr || job->state() == JobState::kEnding || !share->is_elastic()) continue;
    coming += share->bytes() - share->chunk_size() * share->target();
    coming += share->chunk_size() * share->leaving().size();
  }
  return coming;
}

SharePools::Change SharePools::ChangeOf(const Share& share) {
  return {share.job(), share.tier(), share.slots().size(), share.most_slots(), Bytes(0)};
}

std::vector<Pool> SharePools::Pools() const {
  std::vector<Pool> pools;
  for (uint32_t device = 0; device < capacities_.devices.size(); ++device) {
    pools.push_back({Tier::kDevice, device});
  }
  for (const Tier tier : {Tier::kHost, Tier::kSsd}) {
    if (!capacity({tier}).IsZero()) pools.push_back({tier});
  }
  return pools;
}

Bytes SharePools::capacity(Pool pool) const {
  if (pool.tier == Tier::kHost) return capacities_.host;
  if (pool.tier == Tier::kSsd) return capacities_.ssd;
  return pool.device < capacities_.devices.size() ? capacities_.devices[pool.device] : Bytes(0);
}

// The memory that the shares of jobs may use.
Bytes SharePools::Lent(Pool pool) const {
  Bytes lent;
  for (const auto& [id, job] : jobs_) {
    const Share* const share = job->In(pool);
    if (share != nullptr && job->state() != JobState::kEnding) lent += share->bytes();
  }
  return lent;
}

Bytes SharePools::Scrubbing(Pool pool) const {
  Bytes scrubbing;
  for (const auto& [id, job] : jobs_) {
    const Share* const share = job->In(pool);
    if (share == nullptr) continue;
    if (job->state() == JobState::kEnding) scrubbing += share->bytes();
    // Regions that leave a running job are no longer charged to its share.
    scrubbing += share->chunk_size() * share->leaving().size();
  }
  return scrubbing;
}

Bytes SharePools::Free(Pool pool) const { return capacity(pool) - Lent(pool) - Scrubbing(pool); }

// A guaranteed share may be larger than its share is so far, and may include memory that ending
// jobs still have. Regions that leave a running job are free as soon as its sessions return them.
Bytes SharePools::Unguaranteed(Pool pool) const {
  Bytes guaranteed;
  for (const auto& [id, job] : jobs_) {
    const Share* const share = job->In(pool);
    if (share == nullptr) continue;
    if (job->state() == JobState::kEnding) {
      guaranteed += share->bytes() + share->chunk_size() * share->leaving().size();
      continue;
    }
    const uint32_t slots = std::max(share->guaranteed(), share->slots_for_claims());
    guaranteed += share->is_elastic() ? share->chunk_size() * slots : share->bytes();
  }
  return capacity(pool) - std::min(capacity(pool), guaranteed);
}

PoolUsage SharePools::Usage(Pool pool) const {
  PoolUsage usage;
  usage.pool = pool;
  usage.capacity = capacity(pool);
  for (const auto& [id, job] : jobs_) {
    const Share* const share = job->In(pool);
    if (share == nullptr || job->state() == JobState::kEnding || !share->exists()) continue;
    const Bytes used = share->chunk_size() * share->slots().used_slots();
    const Bytes balloon = share->chunk_size() * share->withheld_slots();
    usage.used += used;
    usage.balloon += balloon;
    usage.quarantined += share->chunk_size() * share->slots().quarantined_slots();
    usage.reserved += share->bytes() - used - balloon;  // Regions that leave are being scrubbed.
  }
  usage.scrubbing = Scrubbing(pool);
  usage.obtainable = Unguaranteed(pool);
  usage.free = Free(pool);
  return usage;
}

absl::Status SharePools::CheckDevice(const OpenCall& open) const {
  const size_t count = capacities_.devices.size();
  if (count == 0 && !open.device.has_value()) return absl::OkStatus();
  if (open.device.value_or(0) < count) return states_[DeviceFor(open).device];
  const std::string has = count == 0   ? "no device; leave it out"
                          : count == 1 ? "one device, number 0"
                                       : absl::StrCat(count, " devices, numbers 0 to ", count - 1);
  return absl::InvalidArgumentError(
      absl::StrCat("device: number ", *open.device, ", but the node has ", has));
}

Pool SharePools::DeviceFor(const OpenCall& open) const {
  Pool most{Tier::kDevice, open.device.value_or(0)};
  if (open.device.has_value()) return most;
  for (uint32_t device = 1; device < capacities_.devices.size(); ++device) {
    const Pool pool{Tier::kDevice, device};
    const bool works = states_[device].ok(), best_works = states_[most.device].ok();
    if (works > best_works || (works == best_works && Free(pool) > Free(most))) most = pool;
  }
  return most;
}

}  // namespace memtide

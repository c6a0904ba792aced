// The part of the ShareLedger that sums up pools, and chooses the device of a job.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/engine/shares/share_ledger.h"

namespace memtide {

std::vector<Pool> ShareLedger::Pools() const {
  std::vector<Pool> pools;
  for (uint32_t device = 0; device < capacities_.devices.size(); ++device) {
    pools.push_back({Tier::kDevice, device});
  }
  for (const Tier tier : {Tier::kHost, Tier::kSsd}) {
    if (!capacity({tier}).IsZero()) pools.push_back({tier});
  }
  return pools;
}

Bytes ShareLedger::capacity(Pool pool) const {
  if (pool.tier == Tier::kHost) return capacities_.host;
  if (pool.tier == Tier::kSsd) return capacities_.ssd;
  return pool.device < capacities_.devices.size() ? capacities_.devices[pool.device] : Bytes(0);
}

// The memory that the shares of jobs may use.
Bytes ShareLedger::Lent(Pool pool) const {
  Bytes lent;
  for (const auto& [id, job] : jobs_) {
    const Share* const share = job->In(pool);
    if (share != nullptr && job->state() != JobState::kEnding) lent += share->bytes();
  }
  return lent;
}

Bytes ShareLedger::Scrubbing(Pool pool) const {
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

Bytes ShareLedger::Free(Pool pool) const { return capacity(pool) - Lent(pool) - Scrubbing(pool); }

// A guaranteed share may be larger than its share is so far, and may include memory that ending
// jobs still have. Regions that leave a running job are free as soon as its sessions return them.
Bytes ShareLedger::Unguaranteed(Pool pool) const {
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

PoolUsage ShareLedger::Usage(Pool pool) const {
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

absl::Status ShareLedger::CheckDevice(const OpenCall& open) const {
  const size_t count = capacities_.devices.size();
  if (count == 0 && !open.device.has_value()) return absl::OkStatus();
  if (open.device.value_or(0) < count) return states_[DeviceFor(open).device];
  const std::string has = count == 0   ? "no device; leave it out"
                          : count == 1 ? "one device, number 0"
                                       : absl::StrCat(count, " devices, numbers 0 to ", count - 1);
  return absl::InvalidArgumentError(
      absl::StrCat("device: number ", *open.device, ", but the node has ", has));
}

Pool ShareLedger::DeviceFor(const OpenCall& open) const {
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

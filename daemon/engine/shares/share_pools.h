// SharePools: the pools of a node, and the shares that jobs have of them. Engine-internal.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_SHARES_SHARE_POOLS_H_
#define MEMTIDE_DAEMON_ENGINE_SHARES_SHARE_POOLS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/engine/interface/events.h"
#include "daemon/engine/interface/types.h"
#include "daemon/engine/shares/share.h"

namespace memtide {

class SharePools;

// The shares of one job, one of each pool.
class JobShares {
 public:
  ~JobShares();
  JobShares(const JobShares&) = delete;
  JobShares& operator=(const JobShares&) = delete;

  Share& operator[](Tier tier) { return shares_[static_cast<int>(tier)]; }
  const Share& operator[](Tier tier) const { return shares_[static_cast<int>(tier)]; }
  JobState state() const { return state_; }
  bool is_active() const { return state_ == JobState::kMaking || state_ == JobState::kRunning; }
  // The lowest tier with memory. REQUIRES: there is one.
  Tier home() const;
  // How much memory of the job is being made, dropped, released or populated.
  size_t pending() const;
  // Contents count as many fair shares as sessions have them, which would each have their own.
  void set_fair_shares(size_t sessions) {
    fair_shares_ = std::max(uint32_t{1}, static_cast<uint32_t>(sessions));
  }

  const Owner& owner() const { return owner_; }
  bool is_hidden() const { return is_hidden_; }
  bool may_linger() const { return may_linger_; }
  uint32_t fair_shares() const { return fair_shares_; }
  // Regions that its device share can have, one for each slot; zero: it has others.
  uint64_t device_regions() const;
  // nullptr: the job has its device share on another device.
  const Share* In(Pool pool) const {
    const Share& share = (*this)[pool.tier];
    return share.pool() == pool ? &share : nullptr;
  }

 private:
  friend class ShareLedger;
  JobShares(SharePools* pools, JobId job, Bytes chunk_size, Pool device);

  SharePools* const pools_;
  const JobId job_;
  Owner owner_;
  bool is_hidden_ = false;  // It has what sessions have in common, and counts as no job.
  uint32_t fair_shares_ = 1;
  bool may_linger_ = false;
  JobState state_ = JobState::kMaking;
  std::array<Share, kTiers> shares_;
};

class SharePools {
 public:
  // Zero: the node has no such pool. No device has none.
  struct Capacities {
    std::vector<Bytes> devices;
    Bytes host, ssd;
  };
  // The size of a pool of slots has changed.
  struct Change {
    JobId job;
    Tier tier = Tier::kHost;
    uint32_t slots = 0, most_slots = 0;  // As in Share, after this change.
    Bytes reclaimed;                     // Taken from the share for other jobs.
  };
  using Changes = std::vector<Change>;
  // Opens sums the requests of one pool by OpenCalls that wait for memory.
  struct Opens {
    bool any = false;
    uint64_t elastic = 0;  // How many of them request an elastic share.
    Bytes requested;       // The sizes that the others request.
  };

  SharePools(const Capacities& capacities, const Limits& limits);

  const Limits& limits() const { return limits_; }
  // By job.
  const std::map<JobId, JobShares*>& jobs() const { return jobs_; }
  void NoteFreed() { freed_ = true; }

  // All pools that the node has, in the order of kAllTiers.
  std::vector<Pool> Pools() const;
  // Zero: the node has no such pool.
  Bytes capacity(Pool pool) const;
  Bytes Free(Pool pool) const;
  // Capacity that is not promised to any job: it excludes fixed shares and guaranteed shares.
  Bytes Unguaranteed(Pool pool) const;
  PoolUsage Usage(Pool pool) const;
  // Whether memory was given back since the last call.
  bool TakeFreed() { return std::exchange(freed_, false); }
  // INVALID_ARGUMENT: the call names a device that the node does not have. UNAVAILABLE: the device
  // is lost, or all are.
  absl::Status CheckDevice(const OpenCall& open) const;
  // Not OK: the device lends no memory now, and why.
  void SetState(uint32_t device, absl::Status state) { states_[device] = std::move(state); }
  absl::Status StateOf(uint32_t device) const { return states_[device]; }
  // The pool of the device share that the call would get now: of a device that is lost only if all
  // are. REQUIRES: the node has the device that the call names.
  Pool DeviceFor(const OpenCall& open) const;
  // The pool of the call's share at the tier. REQUIRES: CheckDevice() is OK.
  Pool PoolFor(const OpenCall& open, Tier tier) const;
  // The present size, as if it had just changed.
  static Change ChangeOf(const Share& share);
  // Zero: the size is not requested.
  static Bytes AskedOf(const OpenCall& open, Tier tier);
  // Memory that is free, or is being given back.
  Bytes FreeSoon(Pool pool) const;
  // Charges the share for its target or for the memory that exists, whichever is more.
  void Charge(Share& share);

 private:
  Bytes Lent(Pool pool) const;
  Bytes Scrubbing(Pool pool) const;

  friend class JobShares;

  const Capacities capacities_;
  const Limits limits_;
  std::vector<absl::Status> states_;  // By the number of the device.
  std::map<JobId, JobShares*> jobs_;
  bool freed_ = false;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_SHARES_SHARE_POOLS_H_

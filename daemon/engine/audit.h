// Audit: the invariants of the engine, which hold between any two events. Engine-internal.
#ifndef MEMTIDE_DAEMON_ENGINE_AUDIT_H_
#define MEMTIDE_DAEMON_ENGINE_AUDIT_H_

#include <cstdint>
#include <set>

#include "daemon/engine/calls/calls.h"
#include "daemon/engine/core.h"
#include "daemon/engine/jobs/jobs.h"
#include "daemon/engine/sharing/offers.h"

namespace memtide {

class Audit {
 public:
  Audit(const Core& core, const Calls& calls, const Offers& offers, const Jobs& jobs)
      : core_(core), calls_(calls), offers_(offers), jobs_(jobs) {}

  void CheckInvariants() const;
  // Checks the next piece of what CheckInvariants() checks.
  void Next();
  // How often Next() has checked everything.
  uint64_t passes() const { return audits_; }

 private:
  void AddHomes(const Job& job, std::set<SlotNumber>* used) const;
  static void AddDuplicated(const Job& job, std::set<SlotNumber>* used);
  void CheckShare(const Job& job, Tier tier, const std::set<SlotNumber>& used) const;
  void CheckTables() const;
  void CheckChunk(ChunkIndex index) const;
  void CheckJob(const Job& job) const;

  const Core& core_;
  const Calls& calls_;
  const Offers& offers_;
  const Jobs& jobs_;

  // How far the present audit is: chunks below this index, then jobs up to this one.
  uint32_t audited_chunks_ = 0;
  JobId audited_job_;
  uint64_t audits_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_AUDIT_H_

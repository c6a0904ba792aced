// SessionEvents: passes the events of a client's session on to its regions and leases.
//
// Events begin with DaemonSession::Open, before there is a LeaseMonitor. Until Attach, those that a
// LeaseMonitor must know are stored for it; no lease is held yet, so there is none to give back.
// Thread-safe.
#ifndef MEMTIDE_CLIENT_SESSION_EVENTS_H_
#define MEMTIDE_CLIENT_SESSION_EVENTS_H_

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "client/lease/lease_monitor.h"
#include "client/lease/region_table.h"
#include "client/memory/region.h"
#include "client/rpc/daemon_session.h"

namespace memtide::client {

class SessionEvents : public DaemonSessionEvents {
 public:
  // `regions` must outlive this.
  explicit SessionEvents(RegionTable* regions) : regions_(regions) {}

  // Passes on what is stored, and from now on every event. `leases` must outlive the session.
  // REQUIRES: it is the first call.
  void Attach(LeaseMonitor* leases) ABSL_LOCKS_EXCLUDED(mutex_);

  void RegionArrived(RegionId id, Region region) override;
  void RegionGone(RegionId id, const DeviceShare& share) override ABSL_LOCKS_EXCLUDED(mutex_);
  void RevokeRequested(const Revocation& revocation) override ABSL_LOCKS_EXCLUDED(mutex_);
  void LeaseBudgetChanged(const LeaseBudget& budget) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Lost(const absl::Status& reason) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  RegionTable* const regions_;
  Mutex mutex_;
  LeaseMonitor* leases_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<std::pair<RegionId, DeviceShare>> gone_ ABSL_GUARDED_BY(mutex_);
  absl::optional<LeaseBudget> budget_ ABSL_GUARDED_BY(mutex_);  // The last that the daemon sent.
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_SESSION_EVENTS_H_

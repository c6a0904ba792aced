// A device that is lost: its GPU has failed or was reset, or its process has ended. Copies on other
// tiers and devices stay as they are.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/jobs/jobs.h"

namespace memtide {

void Jobs::On(const DeviceState& event) {
  core_.ledger.pools().SetState(event.device, event.state);
  if (event.state.ok()) return;
  std::vector<Job*> jobs;
  for (const auto& [id, job] : core_.jobs) {
    const Share& share = job->share(Tier::kDevice);
    if (share.exists() && share.pool().device == event.device) jobs.push_back(job.get());
  }
  for (Job* const job : jobs) LoseDevice(*job, event.state);
}

void Jobs::LoseDevice(Job& job, const absl::Status& why) {
  // A job whose first memory is being made has sent no region to a session. Ending jobs need none.
  if (job.state() == JobState::kMaking || job.state() == JobState::kEnding) return;
  // A job that leases in host memory only goes on, but not at the device: its sessions would map
  // regions that are not there. Copies may have come to the device ahead of a lease.
  if (!job.uses_device) {
    job.has_lost_regions = !job.sessions.empty();
    return residency_.LoseDeviceCopies(job, why);
  }
  // The sessions have mapped memory that is lost, and their processes have lost their contexts.
  core_.counters.sessions_lost += job.sessions.size();
  EndSessions(job, why);
  job.has_lost_regions = false;
  if (job.state() == JobState::kLingering) residency_.LoseDeviceCopies(job, why);
}

}  // namespace memtide

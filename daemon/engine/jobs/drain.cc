// Drain: the daemon takes no new work, and may end when nothing moves any more.
#include <algorithm>

#include "daemon/engine/jobs/jobs.h"

namespace memtide {

// With kAll the daemon takes no session, job, allocation or resize from now on. Fetches and steps
// that wait still end as usual.
void Jobs::On(const DrainCall& event) {
  if (event.mode != DrainMode::kAll) {
    core_.refuses_sessions = event.mode == DrainMode::kSessions;
    return core_.Answer(event.call);
  }
  core_.draining = true;
  for (const auto& [id, job] : core_.jobs) {
    memory_.EndResize(
        *job, absl::UnavailableError("the memtide daemon is draining; the new share holds"));
  }
  drain_calls_.push_back(event.call);
}

// Runs after each event. A DrainCall is answered when no memory moves, no call waits for chunks and
// no snapshot is being saved, so that the daemon may end. A snapshot that waits for a budget of
// writes may take hours, and is not waited for.
void Jobs::AnswerDrained() {
  if (drain_calls_.empty() || !core_.transfers.empty() || calls_.pending() > 0) return;
  const bool saves = std::any_of(core_.jobs.begin(), core_.jobs.end(), [this](const auto& job) {
    return job.second->snapshots.saving.has_value() && core_.writes.WaitingOf(job.first) == 0;
  });
  if (saves) return;
  for (const CallId call : drain_calls_) core_.Answer(call);
  drain_calls_.clear();
}

}  // namespace memtide

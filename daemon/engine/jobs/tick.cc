// Tick: all that ends or is tried again when its time has come.
#include <chrono>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/jobs/jobs.h"

namespace memtide {

void Jobs::On(const Tick&) {
  for (const SessionId id : core_.sessions.Tick(core_.now)) {
    ++core_.counters.sessions_lost;
    const absl::Status why = absl::DeadlineExceededError(absl::StrCat(
        "the session was not renewed for ",
        std::chrono::duration_cast<std::chrono::seconds>(core_.options.limits.session_lease)
            .count(),
        " s and was ended"));
    Session* const session = core_.sessions.Find(id);
    if (session == nullptr) continue;   // It has ended with another one of its job.
    core_.Emit(CloseSession{id, why});  // Before its memory goes.
    EndLiveSession(*session, why);
  }
  // A Tick is also the clock of all deadlines: no event of its own comes for them.
  ExpireCalls();
  memory_.ExpireResizes();
  std::vector<Job*> expired;
  for (auto& [id, job] : core_.jobs) {
    if (job->state() == JobState::kLingering && core_.now >= job->lingers_until &&
        !IsAwaited(*job)) {
      expired.push_back(job.get());
    } else if (job->state() == JobState::kLingering) {
      records_.SaveLastSteps(*job);
    } else if (job->state() == JobState::kRunning) {
      records_.SaveAgain(*job);
    }
    // A write or segment that failed is tried again at a Tick, so that an error that persists
    // causes no busy loop.
    residency_.RetryWrites(*job);
    residency_.ReportFailures(*job);
    core_.ledger.RetrySegments(*job->shares);
    for (const Tier tier : kMemoryTiers) {
      if (!job->share(tier).exists()) continue;
      // A chunk that waited has found room in its own job since, without memory from other jobs.
      const bool waits = job->contents != nullptr || !job->tier(tier).slot_queue.empty();
      if (!waits) core_.ledger.elastic().Satisfy(job->share(tier));
      core_.ScheduleRoomCheck(*job, tier);
    }
  }
  offers_.Tick();
  residency_.ServeWrites();
  for (Job* job : expired) EndJob(*job);
  memory_.ShrinkOverQuota();
  // Waiting Opens are tried once more, and refused when their deadline has passed.
  OpenWaiting();
  scrubber_.ScrubNext();
}

void Jobs::ExpireCalls() {
  const std::set<CallId> late = calls_.LateCalls();
  for (const CallId call : late) {
    if (Waiter* const waiter = calls_.FindWaiter(call)) {
      rank_contents_.Fail(*waiter, calls_.WhyLate(*waiter));
    }
  }
  for (const auto& [id, job] : core_.jobs) {
    for (const WaitingPart& part : job->parts.TakeLate(core_.now)) {
      ++core_.counters.deadlines_exceeded;
      core_.Refuse(part.call.call,
                   absl::DeadlineExceededError("another rank did not end the part"));
    }
    commits_.EndWaitForRanks(*job);
    records_.ExpireWaitForSnapshot(*job);
    if (job->orphans_remain) rank_contents_.FreeOrphans(*job);
  }
  for (const CallId call : late) calls_.ExpireEvict(call);
}

}  // namespace memtide

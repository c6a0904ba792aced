// Deadlines of calls that wait.
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/engine/calls/calls.h"

namespace memtide {

namespace {

// The error of a call whose chunks did not reach its tier before its deadline.
absl::Status NotInTime(const Waiter& waiter) {
  const Job& job = *waiter.job;
  std::string text = absl::StrCat(
      waiter.chunks.size(), " chunks were not at the ", TierName(waiter.tier), " tier in time: ",
      waiter.admitted ? "they are on their way"
                      : absl::StrCat(job.tier(waiter.tier).pinned_chunks(), " of ",
                                     job.share(waiter.tier).slots().size(),
                                     " slots are leased; release some, or raise the pool"));
  const uint32_t quarantined = job.share(waiter.tier).slots().quarantined_slots();
  if (quarantined > 0) {
    absl::StrAppend(&text, "; ", quarantined,
                    " slots wait until what a killed process left on the device has ended");
  }
  if (!job.last_error.ok()) {
    absl::StrAppend(&text, "; last failure: ", job.last_error.message());
  }
  return absl::DeadlineExceededError(text);
}

}  // namespace

std::set<CallId> Calls::LateCalls() {
  std::set<CallId> late;
  for (const auto& [deadline, call] : deadlines_) {
    if (core_.now < deadline) break;
    ++core_.counters.admission_looks;
    late.insert(call);
  }
  return late;
}

absl::Status Calls::WhyLate(const Waiter& waiter) {
  return WhyLate(waiter, absl::StrCat("room for ", waiter.chunks.size(), " chunks"),
                 NotInTime(waiter));
}

void Calls::ExpireEvict(CallId call) {
  const auto found = evicts_.find(call);
  if (found == evicts_.end()) return;
  EvictOperation& evict = *found->second;
  const absl::Status late = absl::DeadlineExceededError(
      absl::StrCat(evict.missing, " chunks did not reach the ", TierName(evict.tier),
                   " tier in time; ", evict.job->last_error.message()));
  EndEvict(evict, WhyLate(evict, absl::StrCat("the eviction of ", evict.missing, " chunks"), late));
}

// `late`, unless the job waits for a budget of writes, which then has to be said of `what`.
absl::Status Calls::WhyLate(const PendingCall& call, const std::string& what, absl::Status late) {
  if (core_.writes.WaitingOf(call.job->id) > 0) return AwaitsBudget(what);
  ++core_.counters.deadlines_exceeded;
  return late;
}

}  // namespace memtide

#include "base/goes_first.h"

#include <sched.h>

#include <atomic>

namespace memtide {
namespace {

// Threads that are started meanwhile have ordinary priority. The flag stays, because only
// CAP_SYS_NICE may clear it.
constexpr int kReset = SCHED_RESET_ON_FORK;

bool Change(int policy, int priority) {
  sched_param parameters = {};
  parameters.sched_priority = priority;
  return sched_setscheduler(0, policy | kReset, &parameters) == 0;
}

// A process that may not is not going to be allowed to, so that it asks once.
std::atomic<bool> g_may{true};

bool TryToGoFirst() {
  if (!g_may.load(std::memory_order_relaxed)) return false;
  if (Change(SCHED_RR, sched_get_priority_min(SCHED_RR))) return true;
  g_may.store(false, std::memory_order_relaxed);
  return false;
}

}  // namespace

GoesFirst::GoesFirst() : changed_(TryToGoFirst()) {}

GoesFirst::~GoesFirst() {
  if (changed_) Change(SCHED_OTHER, 0);
}

}  // namespace memtide

#include "daemon/engine/core.h"

#include <utility>

#include "base/check.h"

namespace memtide {

Core::Core(const EngineOptions& given)
    : options(given),
      sessions(given.limits),
      ledger({given.device_capacities, given.host_capacity, given.ssd_capacity}, given.limits),
      writes(given.ssd_drives, given.user_ssd_per_day) {
  MEMTIDE_CHECK(!given.device_capacities.empty() || !given.host_capacity.IsZero());
  MEMTIDE_CHECK(given.device_capacities.size() <= kMostDevices);
  MEMTIDE_CHECK(!given.device_kinds.empty());
  // Chunks pass through host memory between SSD and the device.
  MEMTIDE_CHECK(given.ssd_capacity.IsZero() || !given.host_capacity.IsZero());
  ledger.quotas().SetQuotas(given.quotas);
  writes.SetQuotas(given.quotas);
}

void Core::Answer(CallId call, absl::Status status) { Emit(Reply{call, std::move(status), {}}); }

void Core::Refuse(CallId call, absl::Status status) {
  counters.calls_refused += !status.GetPayload(kCallAgain).has_value();
  counters.over_quota += IsByQuota(status);
  Answer(call, std::move(status));
}

Session* Core::CallingSession(CallId call, SessionId id) {
  const absl::StatusOr<Session*> session = sessions.Calling(id, now);
  if (session.ok()) return *session;
  Answer(call, session.status());
  return nullptr;
}

bool Core::AnswerAgain(const Session& session, CallId call, uint64_t request_id,
                       size_t event_kind) {
  const absl::StatusOr<const Reply*> reply = sessions.Replayed(session, request_id, event_kind);
  if (!reply.ok()) {
    Answer(call, reply.status());
    return true;
  }
  if (*reply == nullptr) return false;
  // The remembered reply names the first call; this is another attempt of it.
  Reply again = **reply;
  again.call = call;
  Emit(std::move(again));
  return true;
}

}  // namespace memtide

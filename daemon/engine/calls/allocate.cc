// Allocate: new chunks, and the memory that each is sure of from then on: a slot at the lowest
// tier, or a claim on one in host memory.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/calls/calls.h"

namespace memtide {

void Calls::On(const AllocateCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (core_.AnswerAgain(*session, event.call, event.request_id, kKindOf<AllocateCall>)) return;
  if (const absl::Status home = CheckHome(*session->job, event); !home.ok()) {
    return core_.Refuse(event.call, home);
  }
  const auto& allocating = session->job->allocating;
  const uint32_t limit = core_.options.limits.waiting_calls_per_session;
  const auto waiting =
      std::count_if(allocating.begin(), allocating.end(),
                    [&event](const AllocateCall& other) { return other.session == event.session; });
  if (waiting >= limit) {
    return core_.Refuse(event.call, absl::ResourceExhaustedError(absl::StrCat(
                                        limit, " allocations wait already (waiting_calls)")));
  }
  session->job->allocating.push_back(event);
  AllocateWaiting(*session->job);
}

absl::Status Calls::CheckHome(const Job& job, const AllocateCall& event) const {
  const Tier home = event.home.value_or(job.home);
  // Host memory below the tier of the leases has a job with a device; above SSD, one with SSD.
  const bool above =
      home == Tier::kHost && job.home == Tier::kSsd && job.lease_tier == Tier::kDevice;
  if (home == job.home || (above && event.transient)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "home_tier: ", TierName(home), "; the home of this job's chunks is the ", TierName(job.home),
      " tier, or, for activations of a job with a device, host memory"));
}

absl::optional<absl::Status> Calls::TryClaim(const Job& job, uint32_t count) const {
  const Share& host = job.share(Tier::kHost);
  const uint32_t slots = host.slots().size();
  const uint32_t claimed = host.slots_for_claims(count);
  // No call that was accepted lacks slots for the claims that come after it, and no other job those
  // that it is guaranteed.
  const uint32_t used =
      std::max(job.tier(Tier::kHost).pinned_chunks(), job.waiting.LargestAt(Tier::kHost)) + 1;
  const uint32_t guaranteed = std::max(host.guaranteed(), host.slots_for_claims());
  const bool exceeds =
      host.is_elastic() && claimed > guaranteed &&
      job.chunk_size * (claimed - guaranteed) > core_.ledger.pools().Unguaranteed({Tier::kHost});
  if (exceeds || std::max(claimed, host.claims() + count + used) > slots) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "requested ", count, " chunks with their home in host memory; ", host.claims(), " of the ",
        slots, " slots of the job's host share are such homes, and ",
        std::max(claimed - host.claims() - count, used),
        " have to stay for other chunks; raise the host pool, or give the chunks a home on SSD"));
  }
  if (claimed <= host.slots().backed_slots()) return absl::OkStatus();
  // The claim holds only in memory that exists, because the machine may have no more.
  if (host.making() != kNoSegment || host.can_grow()) return absl::nullopt;
  return absl::ResourceExhaustedError(absl::StrCat(
      "requested ", count, " chunks with their home in host memory; the machine has no memory for ",
      "more of the job's host share now", job.last_error.ok() ? "" : "; ",
      job.last_error.message()));
}

absl::optional<absl::Status> Calls::TryAllocate(const Job& job, const AllocateCall& event) const {
  if (event.count == 0 || event.count > core_.options.limits.chunks_per_call) {
    return absl::InvalidArgumentError(absl::StrCat("requested ", event.count,
                                                   " chunks; between 1 and ",
                                                   core_.options.limits.chunks_per_call));
  }
  if (core_.draining) {
    return absl::UnavailableError("the memtide daemon is draining and makes no new chunk");
  }
  const bool claims = event.home.value_or(job.home) != job.home;
  const Share& home = job.share(job.home);
  const uint32_t slots = home.slots().size(), used = job.chunks_at_home();
  const uint32_t wanted = job.HomeSlotsFor(used + event.count);
  if (!claims && wanted > slots) {
    // The memory of slots is made on demand, so the condition counts live chunks, not free slots.
    if (home.is_elastic()) MEMTIDE_RETURN_IF_ERROR(core_.ledger.quotas().CheckQuota(home, wanted));
    return absl::ResourceExhaustedError(absl::StrCat(
        "requested ", event.count, " chunks of ", FormatBytes(job.chunk_size), "; the job's ",
        TierName(job.home), " share holds ", slots / job.HomeSlotsFor(1),
        job.is_durable() ? " (half of its slots, as the job is durable)" : "", ", of which ", used,
        " are used", job.last_error.ok() ? "" : "; ", job.last_error.message()));
  }
  if (event.count > core_.ChunksLeft()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "requested ", event.count, " chunks; the node's limit is ", core_.options.limits.chunks));
  }
  if (claims) return TryClaim(job, event.count);
  // The allocation waits for a segment, or for freed chunks whose transfers have not ended.
  if (!Memory::HasHomes(job, event.count)) return absl::nullopt;
  return absl::OkStatus();
}

// The oldest allocation goes first, so that small ones do not take the memory for which a large one
// waits.
void Calls::AllocateWaiting(Job& job) {
  while (!job.allocating.empty()) {
    const AllocateCall event = job.allocating.front();
    Session& session = *core_.sessions.Find(event.session);
    const Tier tier = event.home.value_or(job.home);
    // An elastic share of SSD grows only here, because no room check concerns SSD.
    if (event.count <= core_.options.limits.chunks_per_call) {
      memory_.GrowForHomes(job, tier, event.count);
    }
    // A client that repeats a call while it waits has two calls in the queue. The second is
    // answered with the chunks of the first.
    if (core_.AnswerAgain(session, event.call, event.request_id, kKindOf<AllocateCall>)) {
      job.allocating.pop_front();
      continue;
    }
    const absl::optional<absl::Status> status = TryAllocate(job, event);
    if (!status.has_value()) return memory_.Grow(job, tier);
    job.allocating.pop_front();
    if (!status->ok()) {
      core_.Refuse(event.call, *status);
    } else {
      Allocate(session, job, event);
    }
  }
}

// Each chunk takes its slot at the lowest tier now and keeps it, so that no write-back ever lacks
// space (decision 3). One whose home is above only claims a slot, which it takes when it needs it.
void Calls::Allocate(Session& session, Job& job, const AllocateCall& event) {
  AllocateReply made;
  made.chunks.reserve(event.count);
  for (uint32_t i = 0; i < event.count; ++i) {
    NewChunk chunk;
    chunk.owner = session.id;
    chunk.kind = event.kind;
    chunk.undefined = event.undefined;
    chunk.transient = event.transient;
    chunk.home = Memory::TakeHome(job, event.home.value_or(job.home));
    made.chunks.push_back(core_.IdOf(residency_.MakeChunk(job, std::move(chunk))));
  }
  core_.AnswerOnce(session, event, std::move(made));
}

void Calls::On(const AllocationsPossible& signal) {
  if (Job* const job = core_.FindJob(signal.job)) AllocateWaiting(*job);
}

void Calls::On(const NoMemoryForChunks& signal) {
  Job* const job = core_.FindJob(signal.job);
  if (job == nullptr) return;
  for (AllocateCall& call : std::exchange(job->allocating, {})) {
    if (call.home.value_or(job->home) == signal.home) {
      core_.Refuse(call.call, signal.why);
    } else {
      job->allocating.push_back(std::move(call));
    }
  }
}

}  // namespace memtide

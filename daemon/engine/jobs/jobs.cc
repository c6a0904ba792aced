// Jobs: opening, leaving, ending.
#include "daemon/engine/jobs/jobs.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/info.h"

namespace memtide {

namespace {

// The longest that an Open waits for the memory of jobs that are ending, or that others have to
// give back. GPU memory is free when the last process that mapped it is gone, which takes the
// driver up to seconds.
constexpr std::chrono::seconds kEndingPatience(10);

// The Open has waited for its deadline.
absl::Status GaveNothingBack(const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; other jobs did not give enough back in ",
                                   kEndingPatience.count(), " s: try again later"));
}

// A training of one rank is that of a single process.
uint32_t RanksOf(const OpenCall& event) { return event.ranks == 1 ? 0 : event.ranks; }

std::string RanksText(uint32_t ranks) {
  return ranks == 0 ? "a single process" : absl::StrCat(ranks, " ranks");
}

}  // namespace

absl::Status Jobs::CheckOpen(const OpenCall& event) const {
  if (event.job_name.size() > kMaxJobNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("job_name has ", event.job_name.size(), " bytes; at most ", kMaxJobNameBytes));
  }
  if (event.ranks > 0 && (event.job_name.empty() || event.rank >= event.ranks)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", event.rank, " of ", event.ranks, " in job \"", event.job_name,
        "\": the ranks of a training open one job by its name, each with a number below their ",
        "count"));
  }
  const bool joins = event.chunk_size.IsZero();
  if (!joins &&
      (!event.chunk_size.IsMultipleOf(kChunkAlignment) || event.chunk_size > kMaxChunkSize)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk_size_bytes is ", event.chunk_size.count(), "; it must be a multiple of ",
        FormatBytes(kChunkAlignment), " and at most ", FormatBytes(kMaxChunkSize)));
  }
  if (event.time_to_live < Duration(0) ||
      event.time_to_live > core_.options.limits.max_time_to_live) {
    return absl::InvalidArgumentError("time_to_live must be between 0 and 24 h");
  }
  if (event.time_to_live > Duration(0) && event.job_name.empty()) {
    return absl::InvalidArgumentError(
        "a job without a name has a time_to_live, and nobody could take it up again: give the job "
        "a name");
  }
  if (event.durable_every > 0) MEMTIDE_RETURN_IF_ERROR(records_.CheckDurable(event));
  return core_.ledger.pools().CheckDevice(event);
}

// A name belongs to one user: the job of another user with the same name is never joined.
Job* Jobs::FindJobToJoin(const OpenCall& event, uint32_t uid) {
  if (event.job_name.empty()) return nullptr;
  for (auto& [id, job] : core_.jobs) {
    if (job->state() != JobState::kEnding && job->uid == uid && job->name == event.job_name) {
      return job.get();
    }
  }
  return nullptr;
}

absl::Status Jobs::CheckJobsOf(uint32_t uid) const {
  const uint32_t limit = core_.options.limits.jobs_per_uid;
  const auto is_of_user = [uid](const auto& entry) {
    return entry.second->uid == uid && entry.second->contents == nullptr &&
           entry.second->state() != JobState::kEnding;
  };
  const auto jobs = std::count_if(core_.jobs.begin(), core_.jobs.end(), is_of_user);
  if (static_cast<uint32_t>(jobs) < limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("uid ", uid, " has ", limit, " jobs, and no user may have more; end some with ",
                   "`memtide admin end` (`memtide admin list` lists them)"));
}

// Whether a session waits to join the job, which must not end before.
bool Jobs::IsAwaited(const Job& job) const {
  return std::any_of(core_.opens.begin(), core_.opens.end(), [this, &job](const WaitingOpen& open) {
    const Session* const session = core_.sessions.Find(open.call.session);
    return !job.name.empty() && open.call.job_name == job.name && session->uid == job.uid;
  });
}

// Whether the session may be one more of the job, and one more rank.
absl::Status Jobs::CheckJoins(const Job& job, const OpenCall& event) const {
  const Share& device = job.share(Tier::kDevice);
  if (device.exists() && event.device.value_or(device.pool().device) != device.pool().device) {
    return absl::FailedPreconditionError(
        absl::StrCat("job \"", job.name, "\" has its memory on device ", device.pool().device,
                     ", not on device ", *event.device,
                     ": join it from a process that uses that device, or end it first"));
  }
  if (device.exists()) MEMTIDE_RETURN_IF_ERROR(core_.ledger.pools().StateOf(device.pool().device));
  if (RanksOf(event) != job.ranks) {
    return absl::FailedPreconditionError(
        absl::StrCat("job \"", job.name, "\" has ", RanksText(job.ranks), ", not ",
                     RanksText(event.ranks), ": join it with as many, or end it first"));
  }
  if (event.durable_every > 0 && !job.is_durable()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job \"", job.name,
        "\" is not durable, and has no room for it: end it first (`memtide admin end`)"));
  }
  for (const SessionId id : job.sessions) {
    if (job.ranks == 0 || core_.sessions.Find(id)->rank != event.rank) continue;
    return absl::FailedPreconditionError(absl::StrCat("rank ", event.rank, " of job \"", job.name,
                                                      "\" is there already, as another process"));
  }
  return absl::OkStatus();
}

void Jobs::On(const OpenCall& event) {
  Session* session = core_.sessions.Find(event.session);
  if (session == nullptr) {
    core_.Answer(event.call, absl::UnauthenticatedError("the session has ended; connect again"));
    return;
  }
  core_.sessions.Renew(*session, core_.now);
  absl::Status status = CheckOpen(event);
  if (session->job != nullptr || session->opening) {
    status = absl::FailedPreconditionError("the session has a job open already");
  } else if (core_.draining || core_.refuses_sessions) {
    status = absl::UnavailableError("the memtide daemon is draining and opens no job");
  }
  if (!status.ok()) return core_.Refuse(event.call, status);

  OpenNowOrLater(*session, event, core_.now + kEndingPatience);
}

void Jobs::JoinNowOrLater(Job& job, Session& session, const OpenCall& event, Instant deadline) {
  if (!event.chunk_size.IsZero() && event.chunk_size != job.chunk_size) {
    return core_.Refuse(event.call,
                        absl::FailedPreconditionError(absl::StrCat(
                            "job \"", job.name, "\" has chunks of ", FormatBytes(job.chunk_size),
                            ", not of ", FormatBytes(event.chunk_size))));
  }
  const absl::Status joins = CheckJoins(job, event);
  if (!joins.ok()) return core_.Refuse(event.call, joins);
  if (const absl::Status exposed = memory_.CheckExposed(job); !exposed.ok()) {
    // Regions are replaced as soon as the job has no session.
    if (!job.sessions.empty() && core_.now >= deadline) return core_.Refuse(event.call, exposed);
    session.opening = true;
    core_.opens.push_back({event, deadline});
    return;
  }
  // Until the Open is answered, the session counts as opening, and does not expire.
  session.job = &job;
  commits_.SetRank(session, event);
  session.opening = true;
  if (job.keeps_ranks()) TakePlaceOfRank(job, session);
  if (event.durable_every > 0) records_.SetDurable(job, event.durable_every);
  job.sessions.push_back(session.id);
  job.joining.push_back(event);
  if (job.state() == JobState::kLingering) core_.ledger.SetState(*job.shares, JobState::kRunning);
  // A job in kMaking answers when its first memory is made.
  if (job.state() == JobState::kRunning) FinishOpening(job);
}

void Jobs::OpenNowOrLater(Session& session, const OpenCall& event, Instant deadline) {
  const absl::Status in_group = commits_.CheckGroup(session, event);
  if (!in_group.ok()) return core_.Refuse(event.call, in_group);
  if (Job* const job = FindJobToJoin(event, session.uid)) {
    return JoinNowOrLater(*job, session, event, deadline);
  }
  if (event.chunk_size.IsZero()) {
    return core_.Refuse(event.call,
                        absl::InvalidArgumentError(
                            "chunk_size_bytes is zero, and there is no job of that name to join"));
  }
  // Errors that waiting cannot mend are refused before the call may wait.
  const absl::Status may_make = CheckJobsOf(session.uid);
  if (!may_make.ok()) return core_.Refuse(event.call, may_make);
  const absl::StatusOr<MemoryKind> kind = memory_.DeviceMemory(event);
  if (!kind.ok()) return core_.Refuse(event.call, kind.status());
  OpenCall open = event;
  open.device_memory = *kind;
  const bool some_end = std::any_of(core_.jobs.begin(), core_.jobs.end(), [](const auto& entry) {
    return entry.second->state() == JobState::kEnding;
  });
  const bool in_time = core_.now < deadline, may_wait = some_end && in_time;
  // A share of all free memory includes what ending jobs are about to free. Otherwise a script that
  // is restarted at once would get little.
  const bool wants_all = open.device_share.IsZero() || open.host_share.IsZero();
  if (!may_wait || !wants_all) {
    const absl::Status status = MakeJob(open, session);
    if (status.ok()) return;
    if (!MayBeLentLater(status)) return core_.Refuse(event.call, status);
    // Memory that other jobs are to give back may have to be written first.
    if (!in_time && core_.writes.waiting() > 0)
      return core_.Refuse(event.call, AwaitsBudget("memory for a job"));
    if (!in_time) return core_.Refuse(event.call, GaveNothingBack(status));
    session.opening = true;
    core_.opens.push_back({open, deadline});
    if (memory_.ReclaimForOpen(open, {session.uid, session.groups}) || some_end) return;
    session.opening = false;
    core_.opens.pop_back();
    return core_.Refuse(event.call, status);
  }
  session.opening = true;
  core_.opens.push_back({open, deadline});
}

void Jobs::OpenWaiting() {
  // Each call is tried once: OpenNowOrLater() queues it again, behind the others, if it must go on
  // waiting.
  for (size_t count = core_.opens.size(); count > 0; --count) {
    const WaitingOpen open = core_.opens.front();
    core_.opens.pop_front();
    Session& session = *core_.sessions.Find(open.call.session);
    session.opening = false;
    core_.sessions.Renew(session, core_.now);  // It could not renew while it waited.
    if (core_.draining || core_.refuses_sessions) {
      core_.Refuse(open.call.call,
                   absl::UnavailableError("the memtide daemon is draining and opens no job"));
      continue;
    }
    OpenNowOrLater(session, open.call, open.deadline);
  }
}

absl::Status Jobs::MakeJob(const OpenCall& event, Session& session) {
  auto job = std::make_unique<Job>();
  job->id = JobId(core_.next_job);
  job->uid = session.uid;
  job->groups = session.groups;
  job->made_at = core_.now;
  job->name = event.job_name;
  job->chunk_size = event.chunk_size;
  job->time_to_live = event.time_to_live;
  job->ranks = RanksOf(event);
  if (job->keeps_ranks()) job->kept_ranks.resize(job->ranks);
  MEMTIDE_ASSIGN_OR_RETURN(job->device_memory, memory_.DeviceMemory(event));
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<JobShares> shares,
                           core_.ledger.Lend(job->id, job->owner(), event, job->device_memory));
  memory_.TakeShares(*job, std::move(shares));
  job->snapshots.every = event.durable_every;
  // Nothing would be left of a job whose home is the device.
  job->persistent = core_.options.persistent_jobs && event.time_to_live > Duration(0) &&
                    job->home != Tier::kDevice;
  core_.MarkDirty(*job);
  // From here on nothing fails, so that a refused Open uses no number.
  ++core_.next_job;
  session.job = job.get();
  commits_.SetRank(session, event);
  session.opening = true;
  if (job->keeps_ranks()) TakePlaceOfRank(*job, session);
  job->sessions.push_back(session.id);
  job->joining.push_back(event);
  Job& made = *job;
  core_.jobs.emplace(made.id, std::move(job));
  // The Open waits for the first memory at each of these tiers. A store is made when chunks are
  // allocated.
  for (const Tier tier : kMemoryTiers) {
    if (made.share(tier).exists()) memory_.Grow(made, tier);
  }
  return absl::OkStatus();
}

void Jobs::FinishOpening(Job& job) {
  std::vector<OpenCall> joining;
  joining.swap(job.joining);
  // A job without memory at one of its tiers could never serve a fetch there.
  if (job.state() == JobState::kMaking && !job.making_status.ok()) {
    for (const OpenCall& open : joining) {
      core_.sessions.Find(open.session)->opening = false;
      core_.sessions.Find(open.session)->job = nullptr;
      core_.Refuse(open.call, job.making_status);
    }
    job.sessions.clear();
    EndJob(job);
    return;
  }
  core_.ledger.SetState(*job.shares, JobState::kRunning);
  for (const OpenCall& open : joining) AnswerOpen(job, open);
}

// Announces an elastic share by its limit, which it may reach later. The present budget follows at
// the end of the function.
void Jobs::AnswerOpen(Job& job, const OpenCall& event) {
  Session& session = *core_.sessions.Find(event.session);
  session.opening = false;
  core_.sessions.Renew(session, core_.now);  // It could not renew while it waited.
  OpenReply open;
  open.committed_step = job.committed_step;
  open.manifest = job.manifest.text();
  if (job.keeps_ranks()) {
    open.committed_step = job.kept_ranks[session.rank].committed_step;
    open.manifest = job.kept_ranks[session.rank].manifest.text();
  }
  session.committed_step = session.opened_at_step = open.committed_step;
  commits_.JoinGroup(session);
  open.session = session.id;
  open.job = job.id;
  open.chunk_size = job.chunk_size;
  const Share& device = job.share(Tier::kDevice);
  open.device_slots = device.is_elastic() ? device.limit() : device.slots_with_balloon();
  open.device = job.share(Tier::kDevice).pool().device;
  const Share& host = job.share(Tier::kHost);
  open.host_slots = host.is_elastic() ? host.limit() : host.slots_with_balloon();
  open.ssd_slots = job.share(Tier::kSsd).limit();
  open.max_chunks = job.MaxChunks();
  open.lease_budget = job.AnnouncedLeaseBudget();
  open.session_lease = core_.options.limits.session_lease;
  open.device_memory = job.device_memory;
  for (const Tier tier : kMemoryTiers) {
    for (const uint32_t segment : job.share(tier).segments()) {
      // The slot of this region was given back.
      if (segment == kNoSegment) continue;
      open.regions.push_back(RegionId(segment));
      core_.Emit(SendRegion{event.session, RegionId(segment)});
    }
  }
  core_.AnswerWith(event.call, std::move(open));
  const Share& leased = job.share(job.lease_tier);
  if (leased.slots().size() < job.AnnouncedSlots()) {
    memory_.SendBudget(event.session, leased.slots().size(), leased.most_slots());
  }
}

void Jobs::LeaveJob(Session& session) {
  const auto waits =
      std::find_if(core_.opens.begin(), core_.opens.end(),
                   [&session](const auto& open) { return open.call.session == session.id; });
  if (waits != core_.opens.end()) {
    core_.Answer(waits->call.call, absl::UnavailableError("the session ended"));
    core_.opens.erase(waits);
  }
  if (session.job == nullptr) return;
  Job& job = *session.job;
  session.job = nullptr;
  records_.EndWaitForSnapshot(job, session.id, absl::UnavailableError("the session ended"));
  job.sessions.erase(std::find(job.sessions.begin(), job.sessions.end(), session.id));
  const auto leave = [&](auto& calls) {
    for (size_t i = calls.size(); i > 0; --i) {
      if (calls[i - 1].session != session.id) continue;
      core_.Answer(calls[i - 1].call, absl::UnavailableError("the session ended"));
      calls.erase(calls.begin() + (i - 1));
    }
  };
  leave(job.joining);
  leave(job.allocating);
  if (job.keeps_ranks()) {
    calls_.FreeTransient(job, session.id);
  } else if (job.shares_contents() && !job.sessions.empty()) {
    rank_contents_.FreeOrphans(job);
  }
  // An AllocateCall that waited behind them may need no memory that has yet to be made.
  if (!job.sessions.empty()) return calls_.AllocateWaiting(job);
  // A job that never opened does not linger.
  const bool lingers = job.time_to_live > Duration(0) && !job.lingers_no_more;
  if (lingers && job.state() == JobState::kRunning) {
    core_.ledger.SetState(*job.shares, JobState::kLingering);
    job.has_lost_regions = false;
    job.lingers_until = core_.now + job.time_to_live;
    calls_.FreeTransient(job);
    return records_.SaveLastSteps(job);
  }
  EndJob(job);
}

void Jobs::EndJob(Job& job) {
  MEMTIDE_CHECK(job.sessions.empty());
  core_.ledger.SetState(*job.shares, JobState::kEnding);
  core_.MarkDirty(job);
  records_.EndSnapshots(job);
  for (const ChunkIndex index : job.members.chunks()) {
    if (core_.chunks[index].live()) calls_.FreeChunk(index);
  }
  memory_.MaybeDropMemory(job);
}

void Jobs::On(const EndJobCall& event) {
  Job* const job = core_.FindJob(event.job);
  // The hidden job of common contents ends with those that use it.
  if (job == nullptr || job->state() == JobState::kEnding || job->contents != nullptr ||
      event.viewer.value_or(job->uid) != job->uid) {
    return core_.Refuse(
        event.call, absl::NotFoundError(absl::StrCat("there is no job ", event.job.value(),
                                                     " of yours that has not ended; `memtide admin "
                                                     "list` lists the jobs")));
  }
  EndJobReply ended{InfoOf(core_, *job)};
  const absl::Status why = absl::AbortedError(
      absl::StrCat("job ", job->id.value(), " was ended by `memtide admin end`"));
  job->lingers_no_more = true;
  EndSessions(*job, why);
  // It has ended with its last session, if it had one.
  if (job->state() != JobState::kEnding) EndJob(*job);
  core_.AnswerWith(event.call, std::move(ended));
}

void Jobs::On(const JobMade& signal) {
  if (Job* const job = core_.FindJob(signal.job)) FinishOpening(*job);
}

void Jobs::On(const RegionsReplaced&) { OpenWaiting(); }

void Jobs::On(const WrittenUnseen& signal) {
  Job* const job = core_.FindJob(signal.job);
  if (job == nullptr) return;
  EndSessions(*job, signal.why);
  // A job with a time to live goes on without sessions.
  if (Job* const lingers = core_.FindJob(signal.job)) residency_.DropUnannounced(*lingers);
}

}  // namespace memtide

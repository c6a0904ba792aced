// Jobs: opening, the memory that is lent, ending.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/state.h"
#include "daemon/policy/lru.h"

namespace memtide {

namespace {

// Memory is made in parts of this size, so that a small job starts at once and a large one does
// not touch what it may never need. Larger chunks: one chunk a part.
constexpr Bytes kPartSize = MiB(256);
// Fewer chunks than this at a tier leave no room to bring one while others are in use.
constexpr uint32_t kMinSlots = 4;

}  // namespace

absl::Status EngineState::CheckOpen(const OpenCall& event) const {
  if (event.job_name.size() > 128) {
    return absl::InvalidArgumentError(
        absl::StrCat("job_name has ", event.job_name.size(), " bytes; at most 128"));
  }
  const bool joins = event.chunk_size.IsZero();
  if (!joins &&
      (!event.chunk_size.IsMultipleOf(kChunkAlignment) || event.chunk_size > kMaxChunkSize)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk_size_bytes is ", event.chunk_size.count(), "; it must be a multiple of ",
        FormatBytes(kChunkAlignment), " and at most ", FormatBytes(kMaxChunkSize)));
  }
  if (event.time_to_live < Duration(0) || event.time_to_live > options_.limits.max_time_to_live) {
    return absl::InvalidArgumentError("time_to_live must be between 0 and 24 h");
  }
  return absl::OkStatus();
}

Job* EngineState::FindJobToJoin(const OpenCall& event, uint32_t uid) {
  if (event.job_name.empty()) return nullptr;
  for (auto& [id, job] : jobs_) {
    if (job->state != Job::State::kEnding && job->uid == uid && job->name == event.job_name) {
      return job.get();
    }
  }
  return nullptr;
}

void EngineState::On(const OpenCall& event) {
  Session* session = FindSession(event.session);
  if (session == nullptr) {
    Answer(event.call, absl::UnauthenticatedError("the session has ended; connect again"));
    return;
  }
  session->renewed = now_;
  absl::Status status = CheckOpen(event);
  if (session->job != nullptr) {
    status = absl::FailedPreconditionError("the session has a job open already");
  } else if (draining_) {
    status = absl::UnavailableError("the memtide daemon is draining and opens no job");
  }
  if (!status.ok()) return Refuse(event.call, status);

  if (Job* job = FindJobToJoin(event, session->uid)) {
    if (!event.chunk_size.IsZero() && event.chunk_size != job->chunk_size) {
      return Refuse(event.call,
                    absl::FailedPreconditionError(absl::StrCat(
                        "job \"", job->name, "\" has chunks of ", FormatBytes(job->chunk_size),
                        ", not of ", FormatBytes(event.chunk_size))));
    }
    session->job = job;
    session->opening = true;
    job->sessions.push_back(session->id);
    job->joining.push_back(event);
    if (job->state == Job::State::kLingering) job->state = Job::State::kRunning;
    if (job->state == Job::State::kRunning) FinishOpening(*job);
    return;
  }
  if (event.chunk_size.IsZero()) {
    return Refuse(event.call,
                  absl::InvalidArgumentError(
                      "chunk_size_bytes is zero, and there is no job of that name to join"));
  }
  status = MakeJob(event, session->uid);
  if (!status.ok()) Refuse(event.call, status);
}

Bytes EngineState::Lent(Tier tier) const {
  Bytes lent;
  for (const auto& [id, job] : jobs_) {
    if (job->state != Job::State::kEnding) lent += job->tier(tier).share;
  }
  return lent;
}

Bytes EngineState::Scrubbing(Tier tier) const {
  Bytes scrubbing;
  for (const auto& [id, job] : jobs_) {
    if (job->state == Job::State::kEnding) scrubbing += job->tier(tier).share;
  }
  return scrubbing;
}

absl::StatusOr<Bytes> EngineState::Share(Tier tier, Bytes asked, Bytes chunk_size) const {
  const Bytes capacity = capacity_[static_cast<int>(tier)];
  if (capacity.IsZero()) {
    if (asked.IsZero()) return Bytes(0);
    return absl::ResourceExhaustedError(absl::StrCat("asked for ", FormatBytes(asked), " of the ",
                                                     TierName(tier),
                                                     " pool, but this node has none"));
  }
  const Bytes free = capacity - Lent(tier) - Scrubbing(tier);
  const Bytes share = RoundDown(asked.IsZero() ? free : asked, chunk_size);
  // 32 bits count slots.
  const Bytes bounded = std::min(share, chunk_size * options_.limits.chunks);
  if (share > free || bounded / chunk_size < kMinSlots) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the ", TierName(tier), " pool has ", FormatBytes(free), " free of ", FormatBytes(capacity),
        "; asked for ", asked.IsZero() ? "all that is free" : FormatBytes(asked), ", at least ",
        kMinSlots, " chunks of ", FormatBytes(chunk_size), " are needed"));
  }
  return bounded;
}

absl::Status EngineState::MakeJob(const OpenCall& event, uint32_t uid) {
  auto job = std::make_unique<Job>();
  job->id = JobId(next_job_);
  job->uid = uid;
  job->name = event.job_name;
  job->chunk_size = event.chunk_size;
  job->time_to_live = event.time_to_live;
  const Bytes asked[kTiers] = {event.device_share, event.host_share, event.ssd_share};
  for (const Tier tier : kAllTiers) {
    JobTier& part = job->tier(tier);
    MEMTIDE_ASSIGN_OR_RETURN(part.share,
                             Share(tier, asked[static_cast<int>(tier)], event.chunk_size));
    if (part.share.IsZero()) continue;
    const uint64_t slots = part.share / event.chunk_size;
    part.slots = std::make_unique<SlotPool>(static_cast<uint32_t>(slots));
    part.victims = std::make_unique<LruPolicy>();
    part.slots_per_part = static_cast<uint32_t>(
        std::min(slots, std::max<uint64_t>(kMinSlots, kPartSize / event.chunk_size)));
    if (event.chunk_size * part.slots_per_part > kMaxRegionSize) {
      part.slots_per_part = static_cast<uint32_t>(kMaxRegionSize / event.chunk_size);
    }
    job->home = tier;
  }
  job->work = job->tier(Tier::kDevice).exists() ? Tier::kDevice : Tier::kHost;
  ++next_job_;
  Session& session = *FindSession(event.session);
  session.job = job.get();
  session.opening = true;
  job->sessions.push_back(session.id);
  job->joining.push_back(event);
  Job& made = *job;
  jobs_.emplace(made.id, std::move(job));
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    if (made.tier(tier).exists()) Grow(made, tier);
  }
  return absl::OkStatus();
}

void EngineState::Grow(Job& job, Tier tier) {
  JobTier& part = job.tier(tier);
  const uint32_t missing = part.slots->size() - part.slots->backed_slots();
  if (part.growing || missing == 0 || job.state == Job::State::kEnding) return;
  part.growing = true;
  ++job.parts_pending;
  const uint32_t number = next_part_++;
  part.parts.push_back(number);
  parts_.emplace(number, &job);
  const Bytes size = job.chunk_size * std::min(missing, part.slots_per_part);
  if (tier == Tier::kSsd) {
    Emit(MakeStore{StoreId(number), size});
  } else {
    Emit(MakeRegion{RegionId(number), tier, job.uid, size});
  }
}

void EngineState::On(const RegionMade& event) {
  const auto found = parts_.find(event.region.value());
  if (found == parts_.end()) return;
  const std::vector<uint32_t>& device = found->second->tier(Tier::kDevice).parts;
  const bool on_device = std::count(device.begin(), device.end(), event.region.value()) > 0;
  PartMade(on_device ? Tier::kDevice : Tier::kHost, event.region.value(), event.status);
}

void EngineState::On(const StoreMade& event) {
  PartMade(Tier::kSsd, event.store.value(), event.status);
}

void EngineState::PartMade(Tier tier, uint32_t number, const absl::Status& status) {
  const auto found = parts_.find(number);
  if (found == parts_.end()) return;
  Job& job = *found->second;
  JobTier& part = job.tier(tier);
  MEMTIDE_CHECK(part.growing && part.parts.back() == number);
  part.growing = false;
  --job.parts_pending;
  if (!status.ok()) {
    part.parts.pop_back();
    parts_.erase(found);
    part.slots->Cap();
    job.last_error = status;
    job.making_status.Update(status);
  } else {
    const uint32_t missing = part.slots->size() - part.slots->backed_slots();
    part.slots->Back(std::min(missing, part.slots_per_part));
    if (tier != Tier::kSsd && job.state != Job::State::kEnding) {
      for (const SessionId session : job.sessions) {
        // Sessions that still wait for their Open get all regions with its answer.
        if (!FindSession(session)->opening) Emit(SendRegion{session, RegionId(number)});
      }
    }
  }
  if (job.state == Job::State::kEnding) return MaybeDropMemory(job);
  if (job.state == Job::State::kMaking) {
    if (job.parts_pending == 0) FinishOpening(job);
    return;
  }
  if (!status.ok()) RefuseWhatNoLongerFits(job, tier, status);
  LookAtRoom(job, tier);
  AllocateWaiting(job);
}

// The tier stays smaller than it was when these fetches were accepted.
void EngineState::RefuseWhatNoLongerFits(Job& job, Tier tier, const absl::Status& status) {
  std::vector<FetchOperation*> newest_first;
  for (auto entry = fetches_.rbegin(); entry != fetches_.rend(); ++entry) {
    FetchOperation* fetch = entry->second.get();
    if (fetch->job == &job && fetch->tier == tier) newest_first.push_back(fetch);
  }
  for (FetchOperation* fetch : newest_first) {
    const bool too_many = fetch->admitted && job.tier(tier).committed > job.LeaseLimit(tier);
    if (too_many || fetch->chunks.size() > job.LeaseLimit(tier)) Fail(*fetch, status);
  }
}

void EngineState::FinishOpening(Job& job) {
  std::vector<OpenCall> joining;
  joining.swap(job.joining);
  if (job.state == Job::State::kMaking && !job.making_status.ok()) {
    for (const OpenCall& open : joining) {
      FindSession(open.session)->opening = false;
      FindSession(open.session)->job = nullptr;
      Refuse(open.call, job.making_status);
    }
    job.sessions.clear();
    EndJob(job);
    return;
  }
  job.state = Job::State::kRunning;
  for (const OpenCall& open : joining) AnswerOpen(job, open);
}

void EngineState::AnswerOpen(Job& job, const OpenCall& event) {
  Session& session = *FindSession(event.session);
  session.opening = false;
  session.renewed = now_;  // It could not renew while it waited.
  OpenReply open;
  open.job = job.id;
  open.chunk_size = job.chunk_size;
  const auto slots = [&job](Tier tier) {
    return job.tier(tier).exists() ? job.tier(tier).slots->size() : 0;
  };
  open.device_slots = slots(Tier::kDevice);
  open.host_slots = slots(Tier::kHost);
  open.ssd_slots = slots(Tier::kSsd);
  open.max_chunks = job.MaxChunks();
  open.lease_budget = job.LeaseBudget();
  open.session_lease = options_.limits.session_lease;
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    for (const uint32_t part : job.tier(tier).parts) {
      if (job.tier(tier).growing && part == job.tier(tier).parts.back()) continue;
      open.regions.push_back(RegionId(part));
      Emit(SendRegion{event.session, RegionId(part)});
    }
  }
  Reply reply;
  reply.call = event.call;
  reply.value = std::move(open);
  Emit(std::move(reply));
}

void EngineState::LeaveJob(Session& session) {
  if (session.job == nullptr) return;
  Job& job = *session.job;
  session.job = nullptr;
  job.sessions.erase(std::find(job.sessions.begin(), job.sessions.end(), session.id));
  const auto unavailable = [&](CallId call) {
    Answer(call, absl::UnavailableError("the session ended"));
  };
  for (size_t i = job.joining.size(); i > 0; --i) {
    if (job.joining[i - 1].session != session.id) continue;
    unavailable(job.joining[i - 1].call);
    job.joining.erase(job.joining.begin() + (i - 1));
  }
  for (size_t i = job.allocating.size(); i > 0; --i) {
    if (job.allocating[i - 1].session != session.id) continue;
    unavailable(job.allocating[i - 1].call);
    job.allocating.erase(job.allocating.begin() + (i - 1));
  }
  if (!job.sessions.empty()) return;
  if (job.time_to_live > Duration(0) && job.state == Job::State::kRunning) {
    job.state = Job::State::kLingering;
    job.lingers_until = now_ + job.time_to_live;
    return;
  }
  EndJob(job);
}

void EngineState::EndJob(Job& job) {
  MEMTIDE_CHECK(job.sessions.empty());
  job.state = Job::State::kEnding;
  for (const uint32_t place : std::vector<uint32_t>(job.members)) {
    if (place != kNoPlace && !chunks_[place].dying) FreeChunk(place);
  }
  MaybeDropMemory(job);
}

void EngineState::MaybeDropMemory(Job& job) {
  if (job.chunks > 0 || job.dying_chunks > 0 || job.parts_pending > 0) return;
  for (const Tier tier : kAllTiers) {
    for (const uint32_t part : job.tier(tier).parts) {
      ++job.parts_pending;
      if (tier == Tier::kSsd) {
        Emit(DropStore{StoreId(part)});
      } else {
        Emit(DropRegion{RegionId(part)});
      }
    }
  }
  if (job.parts_pending == 0) ended_.push_back(job.id);
}

void EngineState::On(const RegionDropped& event) { PartDropped(event.region.value()); }
void EngineState::On(const StoreDropped& event) { PartDropped(event.store.value()); }

void EngineState::PartDropped(uint32_t number) {
  const auto found = parts_.find(number);
  if (found == parts_.end()) return;
  Job& job = *found->second;
  MEMTIDE_CHECK(job.state == Job::State::kEnding);
  parts_.erase(found);
  if (--job.parts_pending == 0) ended_.push_back(job.id);
}

}  // namespace memtide

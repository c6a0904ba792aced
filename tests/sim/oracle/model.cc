#include "tests/sim/oracle/model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/expect.h"
#include "tests/sim/trace.h"

namespace memtide::sim {

void Model::Before(Instant now, const Event& event) {
  state_.now = now;
  ++state_.events;
  freeing_.clear();
  closed_now_.clear();
  unresized_.reset();
  if (const auto* connected = std::get_if<ClientConnected>(&event)) {
    SessionState session;
    session.uid = connected->uid;
    session.renewed = session.heard = now;
    state_.sessions[connected->session] = session;
  } else if (const auto* gone = std::get_if<ClientGone>(&event)) {
    SessionState& session = state_.sessions.at(gone->session);
    if (session.phase == Phase::kOpening) probes_.Hit(Probe::kGoneWhileOpening);
    if (state_.WaitingCalls(gone->session) != 0) probes_.Hit(Probe::kGoneWhileWaiting);
    EndSession(gone->session, Whole::kTorn);
    session.phase = Phase::kEnded;
    session.gone = true;
  } else if (const auto* done = std::get_if<TransferDone>(&event)) {
    if (!done->status.ok()) ++state_.faults;
  } else if (const auto* region = std::get_if<RegionMade>(&event)) {
    if (!region->status.ok()) BeforeMakeFailed();
  } else if (const auto* dropped = std::get_if<RegionDropped>(&event)) {
    state_.dropping.erase(dropped->region);
    for (auto& [id, job] : state_.jobs) job.leaving.erase(dropped->region);
  } else if (const auto* store = std::get_if<StoreMade>(&event)) {
    if (!store->status.ok()) ++state_.faults, ++state_.makes_failed;
  } else if (const auto* filled = std::get_if<SlotPopulated>(&event)) {
    if (!filled->status.ok()) ++state_.faults;
  } else if (const auto* done = std::get_if<StepDone>(&event)) {
    BeforeStepDone(*done);
  } else if (const auto* restore = std::get_if<Restore>(&event)) {
    BeforeRestart(*restore);
  } else if (std::holds_alternative<Tick>(event)) {
    EndLateJobs();
  }
  if (CallOf(event) != nullptr) BeforeCall(event);
}

// The region may have been one of a device: the node has forgotten it.
void Model::BeforeMakeFailed() {
  ++state_.faults;
  ++state_.makes_failed;
  for (auto& [id, job] : state_.jobs) job.lacks_device_slots |= job.HasElasticDevice();
}

void Model::BeforeCall(const Event& event) {
  Call call;
  call.event = event;
  call.event_number = state_.events;
  call.arrived = state_.now;
  call.faults_before = state_.faults;
  call.permitted = PermittedCodes(state_, event);
  if (const SessionId* session = SessionOf(event)) {
    call.session = *session;
    const auto found = state_.sessions.find(*session);
    if (found != state_.sessions.end()) {
      found->second.heard = state_.now;
      for (const Remembered& remembered : found->second.remembered) {
        if (RequestIdOf(event) == 0 || remembered.request_id != RequestIdOf(event)) continue;
        if (remembered.event.index() != event.index()) {
          call.permitted = {absl::StatusCode::kInvalidArgument};
          continue;
        }
        // A reply that was an error may be repeated, or the wish tried again.
        if (remembered.reply.status.ok()) call.permitted.clear();
        call.permitted.insert(remembered.reply.status.code());
      }
    }
  }
  call.deadline = state_.now + state_.config.limits.max_wait;
  if (const auto* fetch = std::get_if<FetchCall>(&event)) {
    const Duration longest = state_.config.limits.max_wait;
    const bool given = fetch->deadline > Duration(0) && fetch->deadline < longest;
    call.deadline = state_.now + (given ? fetch->deadline : longest);
  }
  if (const auto* step = std::get_if<StepCall>(&event)) {
    if (step->deadline > Duration(0)) call.deadline = state_.now + step->deadline;
  }
  if (const auto* resize = std::get_if<ResizeCall>(&event)) {
    if (resize->deadline > Duration(0)) {
      // A hostile one is the longest that there is.
      const Duration longest = state_.config.limits.max_wait;
      call.deadline = state_.now + std::min(resize->deadline, longest);
    }
  }
  if (std::holds_alternative<FetchCall>(event) || std::holds_alternative<StepCall>(event)) {
    for (const ChunkId chunk : *ChunksOf(event)) {
      const auto wanted = state_.chunks.find(chunk);
      if (wanted == state_.chunks.end()) continue;
      wanted->second.evicted_to.reset();
      wanted->second.wanted = state_.events;
    }
  }
  call.at_once = AnsweredAtOnce(state_, event, call.permitted);
  if (const auto* open = std::get_if<OpenCall>(&event);
      open != nullptr && call.permitted.count(absl::StatusCode::kOk) != 0) {
    state_.sessions.at(open->session).phase = Phase::kOpening;
  }
  if (const auto* resize = std::get_if<ResizeCall>(&event);
      resize != nullptr && call.permitted.count(absl::StatusCode::kOk) != 0) {
    ApplyResize(*resize);
  }
  if (const auto* freed = std::get_if<FreeCall>(&event)) {
    freeing_.insert(freed->chunks.begin(), freed->chunks.end());
  }
  if (const auto* close = std::get_if<CloseCall>(&event)) closed_now_.insert(close->session);
  if (std::holds_alternative<DrainCall>(event)) state_.draining = true;
  const bool certain = call.permitted == Codes{absl::StatusCode::kOk};
  const bool gives_back = GivesBack(event) && state_.IsOpen(*call.session);
  if ((certain || gives_back) && FindRemembered(call) == nullptr) ApplyEnds(event);
  state_.calls[*CallOf(event)] = std::move(call);
}

void Model::ApplyEnds(const Event& event) {
  if (const auto* fetch = std::get_if<FetchCall>(&event)) {
    SessionState& session = state_.sessions.at(fetch->session);
    for (const ChunkId chunk : fetch->releases) session.leases.erase(chunk);
  } else if (const auto* evict = std::get_if<EvictCall>(&event)) {
    SessionState& session = state_.sessions.at(evict->session);
    for (const ChunkId chunk : evict->chunks) session.leases.erase(chunk);
  } else if (const auto* release = std::get_if<ReleaseCall>(&event)) {
    SessionState& session = state_.sessions.at(release->session);
    for (const ChunkId chunk : release->chunks) session.leases.erase(chunk);
  } else if (const auto* freed = std::get_if<FreeCall>(&event)) {
    for (const ChunkId chunk : freed->chunks) {
      if (state_.chunks.count(chunk) == 0) continue;
      if (node_.transfers() != 0) probes_.Hit(Probe::kFreedWhileMoving);
      EndChunk(chunk);
    }
  } else if (const auto* discard = std::get_if<DiscardCall>(&event)) {
    for (const ChunkId id : discard->chunks) {
      state_.sessions.at(discard->session).leases.erase(id);
      ChunkState& chunk = state_.chunks.at(id);
      // A fetch that waits for room or for a lease of this session goes on.
      chunk.discarded = state_.WaitedFor(id) ? 0 : state_.events;
      DiscardChunk(&chunk);
      chunk.whole = Whole::kUndefined;
      probes_.Hit(Probe::kDiscardedByClient);
      if (node_.transfers() != 0) probes_.Hit(Probe::kDiscardedWhileMoving);
    }
  } else if (const auto* part = std::get_if<EndPartCall>(&event)) {
    EndPart(*part);
  } else if (const auto* back = std::get_if<ReturnRegionsCall>(&event)) {
    SessionState& session = state_.sessions.at(back->session);
    for (const RegionId region : back->regions) {
      if (session.asked_back.erase(region) != 0) session.regions.erase(region);
    }
  } else if (const auto* close = std::get_if<CloseCall>(&event)) {
    if (state_.sessions.count(close->session) == 0) return;
    EndSession(close->session, Whole::kUnsure);
    state_.sessions.at(close->session).phase = Phase::kEnded;
  }
}

void Model::EndChunk(ChunkId chunk) {
  for (auto& [id, session] : state_.sessions) session.leases.erase(chunk);
  state_.chunks.erase(chunk);
  state_.ended_chunks.insert(chunk);
}

// `written`: what becomes of the chunks that the session could write.
void Model::EndSession(SessionId id, Whole written) {
  SessionState& session = state_.sessions.at(id);
  EndPartsOf(id);
  for (const auto& [chunk, lease] : session.leases) {
    if (lease.access != Access::kWrite) continue;
    state_.chunks.at(chunk).whole = written;
    if (written == Whole::kTorn) probes_.Hit(Probe::kTornByDeath);
  }
  session.leases.clear();
  if (!session.asked_back.empty()) probes_.Hit(Probe::kGoneWithRegions);
  session.asked_back.clear();
  session.regions.clear();
  const auto job = state_.jobs.find(session.job);
  if (session.phase != Phase::kOpen || job == state_.jobs.end()) return;
  job->second.sessions.erase(id);
  if (!job->second.sessions.empty()) return;
  job->second.left = state_.now;
  if (job->second.time_to_live == Duration(0)) return EndJob(job->first);
  for (const auto& [chunk, state] : state_.chunks) {
    if (state.job == job->first && state.transient) probes_.Hit(Probe::kTransientEnded);
  }
  EndTransient(job->first);
}

void Model::EndTransient(JobId job) {
  std::vector<ChunkId> ended;
  for (const auto& [chunk, state] : state_.chunks) {
    if (state.job == job && state.transient) ended.push_back(chunk);
  }
  for (const ChunkId chunk : ended) EndChunk(chunk);
}

void Model::EndJob(JobId job) {
  if (state_.jobs.at(job).time_to_live > Duration(0)) probes_.Hit(Probe::kJobEndedByTimeToLive);
  std::vector<ChunkId> ended;
  for (const auto& [chunk, state] : state_.chunks) {
    if (state.job == job) ended.push_back(chunk);
  }
  for (const ChunkId chunk : ended) EndChunk(chunk);
  state_.jobs.erase(job);
}

void Model::EndLateJobs() {
  std::vector<JobId> late;
  for (const auto& entry : state_.jobs) {
    const JobState& job = entry.second;
    const bool is_awaited =
        std::any_of(state_.calls.begin(), state_.calls.end(), [&](const auto& call) {
          const auto* const open = std::get_if<OpenCall>(&call.second.event);
          return open != nullptr && JobToJoin(state_, *open) == &job;
        });
    const bool is_late = job.left && state_.now > *job.left + job.time_to_live;
    if (is_late && !is_awaited) late.push_back(entry.first);
  }
  for (const JobId job : late) EndJob(job);
}

void Model::Observe(const Effect& effect) {
  if (const auto* reply = std::get_if<Reply>(&effect)) {
    ObserveReply(*reply);
  } else if (const auto* send = std::get_if<SendRegion>(&effect)) {
    ObserveRegion(*send);
  } else if (const auto* gone = std::get_if<SendRegionGone>(&effect)) {
    ObserveRegionGone(*gone);
  } else if (const auto* drop = std::get_if<DropRegion>(&effect)) {
    ObserveDrop(*drop);
  } else if (const auto* close = std::get_if<CloseSession>(&effect)) {
    ObserveClose(*close);
  } else if (const auto* transfer = std::get_if<StartTransfer>(&effect)) {
    ObserveTransfer(*transfer);
  } else if (const auto* step = std::get_if<StartStep>(&effect)) {
    ObserveStep(*step);
  } else if (const auto* lost = std::get_if<JobLost>(&effect)) {
    if (state_.without_home.count(lost->job) == 0) {
      Broken(absl::StrCat("it fits, and it was given up: ", ToText(effect)));
    }
  } else if (const auto* bad = std::get_if<BadCopyFound>(&effect)) {
    probes_.Hit(bad->has_other_copy ? Probe::kBadCopyReplaced : Probe::kBadCopyLost);
    // The other one may be on the device, where no restart finds it.
    const auto chunk = state_.chunks.find(bad->chunk);
    if (chunk != state_.chunks.end()) chunk->second.lasting = false;
  } else if (const auto* exposed = std::get_if<RegionsStayExposed>(&effect)) {
    const auto job = state_.jobs.find(exposed->job);
    if (job == state_.jobs.end()) return;
    for (const RegionId region : job->second.regions) state_.exposed.erase(region);
  } else if (const auto* empty = std::get_if<ReleaseSlot>(&effect)) {
    ObserveEmpty(*empty);
  } else if (const auto* budget = std::get_if<SendLeaseBudget>(&effect)) {
    ObserveBudget(*budget);
  } else if (const auto* revoke = std::get_if<Revoke>(&effect)) {
    probes_.Hit(Probe::kRevokeSent);
    const SessionState* session = state_.FindSession(revoke->session);
    if (session == nullptr || session->gone || (revoke->count == 0 && revoke->chunks.empty())) {
      Broken(absl::StrCat(ToText(effect), ": nobody there, or nothing asked"));
    }
  }
}

void Model::After(const Event& event) {
  for (const JobId id : std::exchange(state_.unsafe_jobs, {})) {
    const auto job = state_.jobs.find(id);
    if (job != state_.jobs.end() && !job->second.sessions.empty()) {
      return Broken(
          absl::StrCat("job ", id.value(), " goes on in memory that a lost process writes"));
    }
  }
  CheckLeases();
  node_.CheckParts();
  CheckCalls(event);
  CheckLiveness(event);
}

void Model::CheckLeases() {
  for (const auto& [id, session] : state_.sessions) {
    for (const auto& [chunk, lease] : session.leases) {
      const ChunkState& state = state_.chunks.at(chunk);
      if (node_.Read(lease.place) != state.content) {
        return Broken(absl::StrCat("chunk ", chunk.value(), " leased by session ", id.value(),
                                   " changed under the lease"));
      }
      if (node_.IsTarget(lease.place)) {
        return Broken(absl::StrCat("chunk ", chunk.value(), " leased by session ", id.value(),
                                   " is the target of a transfer"));
      }
    }
  }
}

void Model::CheckCalls(const Event& event) {
  for (const auto& [id, call] : state_.calls) {
    if (call.at_once) {
      return Broken(absl::StrCat("not answered at once: ", ToText(call.event)));
    }
    if (call.session && !call.runs) {
      const SessionState* session = state_.FindSession(*call.session);
      if (session == nullptr || session->phase == Phase::kEnded) {
        return Broken(absl::StrCat("its session ended, its call waits: ", ToText(call.event)));
      }
    }
    const bool bounded = std::holds_alternative<FetchCall>(call.event) ||
                         std::holds_alternative<ResizeCall>(call.event) ||
                         (std::holds_alternative<StepCall>(call.event) && !call.runs);
    if (bounded && std::holds_alternative<Tick>(event) && call.deadline <= state_.now) {
      return Broken(absl::StrCat("waits past its deadline: ", ToText(call.event)));
    }
  }
  for (const auto& [id, session] : state_.sessions) {
    if (state_.WaitingCalls(id) > state_.config.limits.waiting_calls_per_session) {
      return Broken(absl::StrCat("session ", id.value(), " has too many waiting calls"));
    }
  }
}

void Model::CheckLiveness(const Event& event) {
  if (const auto* connected = std::get_if<ClientConnected>(&event)) {
    const SessionState& session = state_.sessions.at(connected->session);
    uint32_t others = 0, of_uid = 0;
    for (const auto& [id, other] : state_.sessions) {
      if (id == connected->session || other.phase == Phase::kEnding ||
          other.phase == Phase::kEnded) {
        continue;
      }
      ++others;
      if (other.uid == session.uid) ++of_uid;
    }
    if (session.phase == Phase::kConnected && (others >= state_.config.limits.sessions ||
                                               of_uid >= state_.config.limits.sessions_per_uid)) {
      Broken(absl::StrCat("connected past a limit: ", ToText(event)));
    }
  }
  if (!std::holds_alternative<Tick>(event)) return;
  for (const auto& [id, session] : state_.sessions) {
    if (session.phase == Phase::kOpen &&
        state_.now - session.heard > state_.config.limits.session_lease) {
      return Broken(absl::StrCat("session ", id.value(), " outlives its lease"));
    }
  }
}

void Model::Write(SessionId session, ChunkId chunk, Stamp stamp) {
  node_.Write(state_.sessions.at(session).leases.at(chunk).place, stamp);
  state_.chunks.at(chunk).content = stamp;
}

void Model::SetHung(SessionId session) { state_.sessions.at(session).hung = true; }

}  // namespace memtide::sim

// The part of Model that judges replies: is the code permitted, is the value what was promised.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/expect.h"
#include "tests/sim/oracle/model.h"
#include "tests/sim/trace.h"

namespace memtide::sim {
namespace {

using Code = absl::StatusCode;

bool IsFault(Code code) {
  return code == Code::kInternal || code == Code::kDataLoss || code == Code::kUnavailable ||
         code == Code::kAborted;
}

std::string Names(const Codes& codes) {
  std::string names;
  for (const Code code : codes) {
    absl::StrAppend(&names, names.empty() ? "" : " or ", absl::StatusCodeToString(code));
  }
  return names;
}

}  // namespace

void Model::ObserveReply(const Reply& reply) {
  const auto found = state_.calls.find(reply.call);
  if (found == state_.calls.end()) {
    return Broken(absl::StrCat("answered twice or never asked: ", ToText(Effect(reply))));
  }
  const Call call = std::move(found->second);
  state_.calls.erase(found);
  if (!IsPermitted(call, reply)) {
    return Broken(absl::StrCat(ToText(Effect(reply)), ": to ", ToText(call.event), ", where only ",
                               Names(call.permitted), " was promised"));
  }
  const auto* step = std::get_if<StepCall>(&call.event);
  for (size_t at = 0; step != nullptr && !call.runs && !reply.status.ok(); ++at) {
    if (at == step->chunks.size()) break;
    const auto chunk = state_.chunks.find(step->chunks[at]);
    if (at < step->reads || chunk == state_.chunks.end() || !MayBeTorn(chunk->second)) continue;
    // It may have been given up for the step that was to write it: torn still, or zeros.
    chunk->second.whole = Whole::kUnsure;
    chunk->second.content = kZeros;
  }
  if (!reply.status.ok() && call.event_number < state_.events) {
    if (std::holds_alternative<FetchCall>(call.event) || step != nullptr) {
      // While it waited it may have held chunks where it wanted them.
      for (const ChunkId chunk : *ChunksOf(call.event)) {
        const auto wanted = state_.chunks.find(chunk);
        if (wanted != state_.chunks.end()) wanted->second.wanted = state_.events;
      }
    }
  }
  CheckValueKind(call, reply);
  if (!verdict_.ok()) return;
  HitCallProbes(call, reply);
  HitPartProbes(call, reply);
  if (reply.status.code() == Code::kNotFound && call.event_number == state_.events) {
    CheckNotFound(call, reply);
  }
  if (reply.status.ok() && FindRemembered(call) != nullptr) return CheckRepeated(call, reply);
  if (IsOldReply(call, reply)) return;
  Remember(call, reply);
  if (const auto* open = std::get_if<OpenCall>(&call.event);
      open != nullptr && !reply.status.ok()) {
    // The session may try again, unless it was refused for having a job.
    const auto session = state_.sessions.find(open->session);
    const bool waits = std::any_of(state_.calls.begin(), state_.calls.end(), [&](const auto& c) {
      return std::holds_alternative<OpenCall>(c.second.event) && c.second.session == open->session;
    });
    if (session != state_.sessions.end() && session->second.phase == Phase::kOpening && !waits) {
      session->second.phase = Phase::kConnected;
    }
  }
  if (std::holds_alternative<ResizeCall>(call.event) && call.event_number == state_.events &&
      !reply.status.ok() && unresized_) {
    state_.jobs[unresized_->first] = unresized_->second;
  }
  if (!reply.status.ok()) return;
  const bool applied = call.permitted == Codes{Code::kOk};
  if (!applied && !GivesBack(call.event)) ApplyEnds(call.event);
  std::visit(
      [&](const auto& event) {
        using Kind = std::decay_t<decltype(event)>;
        if constexpr (std::is_same_v<Kind, OpenCall>) {
          Accept(call, event, std::get<OpenReply>(reply.value));
        } else if constexpr (std::is_same_v<Kind, AllocateCall>) {
          Accept(call, event, std::get<AllocateReply>(reply.value));
        } else if constexpr (std::is_same_v<Kind, FetchCall>) {
          Accept(call, event, std::get<FetchReply>(reply.value));
        } else if constexpr (std::is_same_v<Kind, StepCall>) {
          const auto* part = std::get_if<PartReply>(&reply.value);
          if (part != nullptr) Accept(call, event, *part);
        } else if constexpr (std::is_same_v<Kind, ResizeCall>) {
          Accept(call, event, std::get<ResizeReply>(reply.value));
        } else if constexpr (std::is_same_v<Kind, DescribeCall>) {
          Accept(call, event, std::get<DescribeReply>(reply.value));
        } else if constexpr (std::is_same_v<Kind, InspectCall>) {
          Accept(call, event, std::get<InspectReply>(reply.value));
        } else if constexpr (std::is_same_v<Kind, RenewCall>) {
          state_.sessions.at(event.session).renewed = state_.now;
        } else if constexpr (std::is_same_v<Kind, CommitCall>) {
          Accept(call, event);
        } else if constexpr (std::is_same_v<Kind, EvictCall>) {
          for (const ChunkId chunk : event.chunks) {
            const auto evicted = state_.chunks.find(chunk);  // Freed since, perhaps.
            if (evicted == state_.chunks.end() || state_.WaitedFor(chunk)) continue;
            const ChunkState& state = evicted->second;
            // The event of the call may grant a fetch that has waited, too.
            if (std::max(state.wanted, state.exchanged) >= call.event_number) continue;
            evicted->second.evicted_to = event.tier;
          }
        } else if constexpr (std::is_same_v<Kind, DrainCall>) {
          if (node_.transfers() != 0) Broken("drained while transfers are in flight");
          if (!state_.parts.empty()) Broken("drained while a client computes a part");
        }
      },
      call.event);
}

bool Model::IsPermitted(const Call& call, const Reply& reply) const {
  const Code code = reply.status.code();
  // A step that runs ends as the arithmetic does, also where its session has ended.
  if (call.runs) return code == Code::kOk || (code == Code::kInternal && state_.faults != 0);
  if (call.session) {
    const SessionState* session = state_.FindSession(*call.session);
    const bool ended = session != nullptr && closed_now_.count(*call.session) == 0 &&
                       (session->phase == Phase::kEnding || session->phase == Phase::kEnded);
    // A waiting call whose session ends gets an error with any code.
    if (ended && call.event_number != state_.events) return code != Code::kOk;
    if (ended && call.permitted.count(Code::kOk) != 0) return code != Code::kOk;
    if (closed_now_.count(*call.session) != 0 && !std::holds_alternative<CloseCall>(call.event)) {
      return code != Code::kOk;
    }
  }
  if (call.permitted.count(code) != 0) return true;
  return call.permitted.count(Code::kOk) != 0 && MayFailLate(call, code);
}

// Whether a call that was right when it was made may fail with this code.
bool Model::MayFailLate(const Call& call, Code code) const {
  const bool faults = state_.faults > call.faults_before;
  // The reply may be to call again, since it waits for a budget.
  if (state_.config.paced && code == Code::kUnavailable && call.event_number != state_.events) {
    return true;
  }
  if (std::holds_alternative<OpenCall>(call.event)) {
    // While it waited for the memory of jobs that ended, others may have taken what was free.
    const bool waited = call.event_number != state_.events;
    return (faults && IsFault(code)) ||
           ((waited || state_.makes_failed != 0) && code == Code::kResourceExhausted) ||
           (state_.draining && code == Code::kUnavailable);
  }
  const JobState* job = call.session ? state_.JobOf(*call.session) : nullptr;
  if (std::holds_alternative<ResizeCall>(call.event)) {
    return (code == Code::kAborted && job != nullptr && job->resized > call.event_number) ||
           (code == Code::kDeadlineExceeded && call.deadline <= state_.now) ||
           (code == Code::kUnavailable && state_.draining);
  }
  const auto* step = std::get_if<StepCall>(&call.event);
  const bool fetches = std::holds_alternative<FetchCall>(call.event) || step != nullptr;
  if (std::holds_alternative<AllocateCall>(call.event)) {
    return (code == Code::kResourceExhausted && call.event_number != state_.events) ||
           (code == Code::kUnavailable && state_.draining);
  }
  if (!fetches && !std::holds_alternative<EvictCall>(call.event)) return false;
  if (fetches && job != nullptr && job->shrunk > call.event_number &&
      code == Code::kResourceExhausted) {
    return true;
  }
  if (faults && IsFault(code)) return true;
  if (state_.makes_failed != 0 && code == Code::kResourceExhausted) return true;
  const std::vector<ChunkId>& chunks = *ChunksOf(call.event);
  const bool freed = std::any_of(chunks.begin(), chunks.end(), [&](ChunkId chunk) {
    return state_.chunks.count(chunk) == 0 || freeing_.count(chunk) != 0;
  });
  if (freed && code == Code::kNotFound) return true;
  if (code == Code::kDeadlineExceeded) return call.deadline <= state_.now;
  // Leased while it was on its way down.
  if (!fetches)
    return (code == Code::kFailedPrecondition || code == Code::kAborted) &&
           call.event_number != state_.events;
  const bool torn = std::any_of(chunks.begin(), chunks.end(), [&](ChunkId chunk) {
    const auto found = state_.chunks.find(chunk);
    return found != state_.chunks.end() && MayBeTorn(found->second);
  });
  return code == Code::kDataLoss && torn &&
         (step != nullptr || std::get<FetchCall>(call.event).access == Access::kRead);
}

void Model::CheckValueKind(const Call& call, const Reply& reply) {
  size_t expected = 0;  // monostate
  if (reply.status.ok()) {
    if (std::holds_alternative<OpenCall>(call.event)) expected = 1;
    if (std::holds_alternative<AllocateCall>(call.event)) expected = 2;
    if (std::holds_alternative<FetchCall>(call.event)) expected = 3;
    if (std::holds_alternative<DescribeCall>(call.event)) expected = 4;
    if (std::holds_alternative<InspectCall>(call.event)) expected = 5;
    if (std::holds_alternative<ResizeCall>(call.event)) expected = 6;
    if (std::holds_alternative<ReportCall>(call.event)) expected = 11;
    if (const auto* step = std::get_if<StepCall>(&call.event)) {
      expected = step->work == nullptr ? 8 : 0;
    }
  }
  if (reply.value.index() != expected) {
    Broken(
        absl::StrCat(ToText(Effect(reply)), ": not the value that answers ", ToText(call.event)));
  }
  if (!reply.status.ok() && reply.status.message().empty()) {
    Broken(absl::StrCat(ToText(Effect(reply)), ": an error without a word"));
  }
}

void Model::Remember(const Call& call, const Reply& reply) {
  const uint64_t request = RequestIdOf(call.event);
  if (request == 0 || !call.session) return;
  const auto session = state_.sessions.find(*call.session);
  if (session == state_.sessions.end()) return;
  std::deque<Remembered>& remembered = session->second.remembered;
  const auto same = [&](const Remembered& other) { return other.request_id == request; };
  remembered.erase(std::remove_if(remembered.begin(), remembered.end(), same), remembered.end());
  remembered.push_back({request, call.event, reply});
  if (remembered.size() > state_.config.limits.remembered_replies_per_session) {
    remembered.pop_front();
  }
}

// Whether a chunk is another job's, was freed, or never was, must not show.
void Model::CheckNotFound(const Call& call, const Reply& reply) {
  std::string words;
  for (const char c : std::string(reply.status.message())) {
    if (c < '0' || c > '9') words += c;
  }
  const std::string& first = not_found_.insert({call.event.index(), words}).first->second;
  if (first != words) {
    Broken(absl::StrCat(ToText(Effect(reply)), ": another time it said: ", first));
  }
}

const Remembered* Model::FindRemembered(const Call& call) const {
  const uint64_t request = RequestIdOf(call.event);
  const SessionState* session = call.session ? state_.FindSession(*call.session) : nullptr;
  if (request == 0 || session == nullptr) return nullptr;
  for (const Remembered& remembered : session->remembered) {
    if (remembered.request_id == request && remembered.reply.status.ok() &&
        remembered.event.index() == call.event.index()) {
      return &remembered;
    }
  }
  return nullptr;
}

// Whether an allocation is answered from a memory that need not reach back so far.
bool Model::IsOldReply(const Call& call, const Reply& reply) const {
  const auto* made = std::get_if<AllocateReply>(&reply.value);
  if (made == nullptr) return false;
  const auto& allocated = state_.sessions.at(*call.session).allocated;
  const auto found = allocated.find(RequestIdOf(call.event));
  return found != allocated.end() && found->second == made->chunks;
}

void Model::CheckRepeated(const Call& call, const Reply& reply) {
  probes_.Hit(Probe::kReplayedReply);
  const Remembered& remembered = *FindRemembered(call);
  const auto* now = std::get_if<AllocateReply>(&reply.value);
  const auto* then = std::get_if<AllocateReply>(&remembered.reply.value);
  if (now != nullptr && now->chunks != then->chunks) {
    Broken(absl::StrCat(ToText(Effect(reply)),
                        ": not what was answered before: ", ToText(Effect(remembered.reply))));
  }
}

void Model::Accept(const Call& call, const AllocateCall& allocate, const AllocateReply& reply) {
  if (reply.chunks.size() != allocate.count) {
    return Broken(absl::StrCat("allocated another number: ", ToText(call.event)));
  }
  state_.sessions.at(allocate.session).allocated[allocate.request_id] = reply.chunks;
  for (const ChunkId chunk : reply.chunks) {
    ChunkState state;
    state.job = state_.sessions.at(allocate.session).job;
    state.kind = allocate.kind;
    state.undefined = allocate.undefined;
    if (allocate.undefined) state.whole = Whole::kUndefined;
    state.transient = allocate.transient;
    state.host_home = allocate.home.value_or(state_.HomeTier()) != state_.HomeTier();
    if (state_.ended_chunks.count(chunk) != 0 || !state_.chunks.insert({chunk, state}).second) {
      return Broken(absl::StrCat("chunk id ", chunk.value(), " was given before"));
    }
  }
  const JobId id = state_.sessions.at(allocate.session).job;
  JobState& job = state_.jobs.at(id);
  uint32_t homes = state_.HostHomes(id);
  // A call that frees chunks may be answered after the allocations that waited for their homes.
  for (const ChunkId chunk : freeing_) {
    const auto freed = state_.chunks.find(chunk);
    if (freed != state_.chunks.end() && freed->second.job == id) homes -= freed->second.host_home;
  }
  job.most_host_homes = std::max(job.most_host_homes, homes);
  if (homes != 0 && homes + 13 > job.slots[static_cast<size_t>(Tier::kHost)]) {
    Broken(absl::StrCat(homes, " homes leave too few host slots: ", ToText(call.event)));
  }
}

void Model::HitCallProbes(const Call& call, const Reply& reply) {
  const Code code = reply.status.code();
  if (std::holds_alternative<DrainCall>(call.event)) probes_.Hit(Probe::kDrained);
  if (std::holds_alternative<OpenCall>(call.event) && code == Code::kResourceExhausted) {
    probes_.Hit(Probe::kPoolExhausted);
  }
  const auto* allocate = std::get_if<AllocateCall>(&call.event);
  if (allocate != nullptr && code == Code::kResourceExhausted) {
    const bool above = allocate->home.value_or(state_.HomeTier()) != state_.HomeTier();
    probes_.Hit(above ? Probe::kHostHomeRefused : Probe::kChunksExhausted);
  }
  if (std::holds_alternative<EvictCall>(call.event) && code == Code::kOk &&
      call.event_number != state_.events) {
    probes_.Hit(Probe::kEvictWaited);
  }
  if (const std::vector<ChunkId>* chunks = ChunksOf(call.event);
      chunks != nullptr && call.session) {
    for (const ChunkId chunk : *chunks) {
      if (code == Code::kNotFound && state_.chunks.count(chunk) != 0) {
        probes_.Hit(Probe::kForeignChunk);
      }
    }
  }
  if (std::holds_alternative<ResizeCall>(call.event)) HitResizeProbes(call, code);
  const auto* fetch = std::get_if<FetchCall>(&call.event);
  if (fetch == nullptr) return;
  if (code == Code::kNotFound && call.permitted.count(Code::kOk) != 0) {
    probes_.Hit(Probe::kFreedWhileWaitedFor);
  }
  if (code == Code::kDeadlineExceeded) probes_.Hit(Probe::kDeadlinePassed);
  if (code == Code::kUnavailable && !fetch->wait) probes_.Hit(Probe::kNoWaitRefused);
  if (code == Code::kAborted && !fetch->wait) probes_.Hit(Probe::kNoWaitExcluded);
  if (code == Code::kResourceExhausted) {
    const JobState* job = state_.JobOf(fetch->session);
    if (job != nullptr && unresized_ && job->shrunk == state_.events) {
      return probes_.Hit(Probe::kFetchRefusedByResize);
    }
    const bool large =
        job != nullptr && fetch->chunks.size() > job->slots[static_cast<size_t>(fetch->tier)];
    probes_.Hit(large ? Probe::kBatchLargerThanTier : Probe::kWaitingCallsFull);
  }
  if (code == Code::kDataLoss) {
    const bool torn = std::any_of(fetch->chunks.begin(), fetch->chunks.end(), [&](ChunkId chunk) {
      return state_.chunks.count(chunk) != 0 && state_.chunks.at(chunk).whole == Whole::kTorn;
    });
    probes_.Hit(torn ? Probe::kTornReadRefused : Probe::kDiskReadFailedFetch);
  }
}

}  // namespace memtide::sim

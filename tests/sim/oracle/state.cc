#include "tests/sim/oracle/state.h"

#include <algorithm>
#include <type_traits>
#include <variant>

namespace memtide::sim {
namespace {

template <typename T, typename = void>
struct HasCall : std::false_type {};
template <typename T>
struct HasCall<T, std::void_t<decltype(T::call)>> : std::true_type {};

template <typename T, typename = void>
struct HasSession : std::false_type {};
template <typename T>
struct HasSession<T, std::void_t<decltype(T::session)>> : std::true_type {};

template <typename T, typename = void>
struct HasChunks : std::false_type {};
template <typename T>
struct HasChunks<T, std::void_t<decltype(T::chunks)>> : std::true_type {};

template <typename T, typename = void>
struct HasRequest : std::false_type {};
template <typename T>
struct HasRequest<T, std::void_t<decltype(T::request_id)>> : std::true_type {};

bool IsIn(const std::vector<ChunkId>& chunks, size_t first, ChunkId chunk) {
  const auto begin = chunks.begin() + static_cast<std::ptrdiff_t>(first);
  return std::find(begin, chunks.end(), chunk) != chunks.end();
}

}  // namespace

const CallId* CallOf(const Event& event) {
  return std::visit(
      [](const auto& e) -> const CallId* {
        if constexpr (HasCall<std::decay_t<decltype(e)>>::value) return &e.call;
        return nullptr;
      },
      event);
}

const SessionId* SessionOf(const Event& event) {
  return std::visit(
      [](const auto& e) -> const SessionId* {
        // Only of calls: a connection's own events are no calls.
        using Kind = std::decay_t<decltype(e)>;
        if constexpr (HasSession<Kind>::value && HasCall<Kind>::value) return &e.session;
        return nullptr;
      },
      event);
}

const std::vector<ChunkId>* ChunksOf(const Event& event) {
  return std::visit(
      [](const auto& e) -> const std::vector<ChunkId>* {
        if constexpr (HasChunks<std::decay_t<decltype(e)>>::value) return &e.chunks;
        return nullptr;
      },
      event);
}

uint64_t RequestIdOf(const Event& event) {
  return std::visit(
      [](const auto& e) -> uint64_t {
        if constexpr (HasRequest<std::decay_t<decltype(e)>>::value) return e.request_id;
        return 0;
      },
      event);
}

Event WithCall(Event event, CallId call) {
  std::visit(
      [call](auto& e) {
        if constexpr (HasCall<std::decay_t<decltype(e)>>::value) e.call = call;
      },
      event);
  return event;
}

const SessionState* State::FindSession(SessionId session) const {
  const auto found = sessions.find(session);
  return found == sessions.end() ? nullptr : &found->second;
}

bool State::IsOpen(SessionId session) const {
  const SessionState* found = FindSession(session);
  return found != nullptr && found->phase == Phase::kOpen;
}

bool State::IsAwaited(const JobState& job) const {
  if (job.name.empty() || !job.left) return false;
  const Instant late = *job.left + job.time_to_live;
  return std::any_of(calls.begin(), calls.end(), [&](const auto& waiting) {
    const auto* open = std::get_if<OpenCall>(&waiting.second.event);
    const SessionState* session = open != nullptr ? FindSession(open->session) : nullptr;
    return session != nullptr && open->job_name == job.name && session->uid == job.uid &&
           waiting.second.arrived < late;
  });
}

const JobState* State::JobOf(SessionId session) const {
  if (!IsOpen(session)) return nullptr;
  const auto job = jobs.find(FindSession(session)->job);
  return job == jobs.end() ? nullptr : &job->second;
}

bool State::Owns(SessionId session, ChunkId chunk) const {
  const auto found = chunks.find(chunk);
  return IsOpen(session) && found != chunks.end() && found->second.job == FindSession(session)->job;
}

std::vector<SessionId> State::Holders(ChunkId chunk) const {
  std::vector<SessionId> holders;
  for (const auto& [id, session] : sessions) {
    if (session.leases.count(chunk) != 0) holders.push_back(id);
  }
  return holders;
}

bool State::LeasedByOther(SessionId session, ChunkId chunk, bool writers_only) const {
  for (const SessionId holder : Holders(chunk)) {
    if (holder != session &&
        (!writers_only || sessions.at(holder).leases.at(chunk).access == Access::kWrite)) {
      return true;
    }
  }
  return false;
}

bool State::WaitedFor(ChunkId chunk, std::optional<SessionId> by) const {
  for (const auto& [part, step] : parts) {
    if ((!by || part.first == *by) && IsIn(step.chunks, 0, chunk)) return true;
  }
  return std::any_of(calls.begin(), calls.end(), [&](const auto& entry) {
    const auto* step = std::get_if<StepCall>(&entry.second.event);
    if (step != nullptr && (!by || step->session == *by)) {
      return std::count(step->chunks.begin(), step->chunks.end(), chunk) != 0;
    }
    const auto* fetch = std::get_if<FetchCall>(&entry.second.event);
    return fetch != nullptr && (!by || fetch->session == *by) &&
           std::count(fetch->chunks.begin(), fetch->chunks.end(), chunk) != 0;
  });
}

bool State::WaitedForByOther(SessionId session, ChunkId chunk) const {
  for (const auto& [part, step] : parts) {
    if (IsIn(step.chunks, 0, chunk)) return true;
  }
  return std::any_of(calls.begin(), calls.end(), [&](const auto& entry) {
    const auto* step = std::get_if<StepCall>(&entry.second.event);
    if (step != nullptr) {  // Its leases are its own.
      return std::count(step->chunks.begin(), step->chunks.end(), chunk) != 0;
    }
    const auto* fetch = std::get_if<FetchCall>(&entry.second.event);
    return fetch != nullptr && fetch->session != session &&
           std::count(fetch->chunks.begin(), fetch->chunks.end(), chunk) != 0;
  });
}

uint32_t State::WaitingCalls(SessionId session) const {
  const auto waiting = std::count_if(calls.begin(), calls.end(), [&](const auto& entry) {
    const Event& event = entry.second.event;
    return entry.second.session == session &&
           (std::holds_alternative<FetchCall>(event) || std::holds_alternative<EvictCall>(event) ||
            std::holds_alternative<StepCall>(event));
  });
  const auto held = std::count_if(parts.begin(), parts.end(),
                                  [&](const auto& entry) { return entry.first.first == session; });
  return static_cast<uint32_t>(waiting + held);
}

bool State::HasPart(PartKey part) const {
  if (parts.count(part) != 0) return true;
  return std::any_of(calls.begin(), calls.end(), [&](const auto& entry) {
    const auto* step = std::get_if<StepCall>(&entry.second.event);
    return step != nullptr && step->work == nullptr && step->session == part.first &&
           step->part == part.second;
  });
}

bool State::Evicted(ChunkId chunk) const {
  return std::any_of(calls.begin(), calls.end(), [&](const auto& entry) {
    const auto* evict = std::get_if<EvictCall>(&entry.second.event);
    return evict != nullptr && std::count(evict->chunks.begin(), evict->chunks.end(), chunk) != 0;
  });
}

bool State::IsStepped(ChunkId chunk, bool written) const {
  const auto uses = [&](const auto& entry) {
    const RunningStep& step = entry.second;
    return IsIn(step.chunks, written ? step.read.size() : 0, chunk);
  };
  return std::any_of(steps.begin(), steps.end(), uses) ||
         std::any_of(parts.begin(), parts.end(), uses);
}

bool State::AllocationsWait() const {
  return std::any_of(calls.begin(), calls.end(), [](const auto& entry) {
    return std::holds_alternative<AllocateCall>(entry.second.event);
  });
}

std::set<ChunkId> State::LeasedAt(JobId job, Tier tier) const {
  std::set<ChunkId> leased;
  for (const auto& [id, session] : sessions) {
    if (session.job != job) continue;
    for (const auto& [chunk, lease] : session.leases) {
      if (lease.tier == tier) leased.insert(chunk);
    }
  }
  return leased;
}

Bytes State::Free(Pool pool) const {
  for (const PoolUsage& usage : pools) {
    if (usage.pool == pool) return usage.free;
  }
  return Bytes(0);
}

Pool State::PoolFor(const OpenCall& open, Tier tier) const {
  if (tier != Tier::kDevice) return {tier};
  if (open.device.has_value()) return {tier, *open.device};
  Pool emptiest{tier, 0};
  for (uint32_t device = 1; device < config.devices; ++device) {
    if (Free({tier, device}) > Free(emptiest)) emptiest = {tier, device};
  }
  return emptiest;
}

bool State::HasHostHomes() const {
  return config.device_slots != 0 && config.host_slots != 0 && config.ssd_slots != 0;
}

bool State::IsTransient(ChunkId chunk) const {
  const auto found = chunks.find(chunk);
  return found != chunks.end() && found->second.transient;
}

uint32_t State::HostHomes(JobId job) const {
  return static_cast<uint32_t>(std::count_if(chunks.begin(), chunks.end(), [&](const auto& chunk) {
    return chunk.second.job == job && chunk.second.host_home;
  }));
}

Tier State::HomeTier() const {
  return config.ssd_slots != 0 ? Tier::kSsd : config.host_slots != 0 ? Tier::kHost : Tier::kDevice;
}

}  // namespace memtide::sim

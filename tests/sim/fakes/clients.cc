#include "tests/sim/fakes/clients.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace memtide::sim {
namespace {

Tier PickTier(const State& state, Random* random) {
  if (state.config.device_slots == 0) return Tier::kHost;
  return state.config.host_slots == 0 || random->Percent(state.config.device_percent)
             ? Tier::kDevice
             : Tier::kHost;
}

Tier PickLowerTier(const State& state, Random* random) {
  if (state.config.ssd_slots == 0) return Tier::kHost;
  return random->Percent(60) ? Tier::kSsd : Tier::kHost;
}

std::vector<ChunkId> PickLeases(const State& state, SessionId session, uint32_t percent,
                                Random* random) {
  std::vector<ChunkId> picked;
  for (const auto& [chunk, lease] : state.FindSession(session)->leases) {
    if (random->Percent(percent)) picked.push_back(chunk);
  }
  return picked;
}

// A piece of an iteration that uses all chunks in order, nearly.
std::vector<MomentReport> MakeMoments(const State& state, SessionId session, Random* random) {
  std::vector<ChunkId> own;
  for (const auto& [chunk, chunk_state] : state.chunks) {
    if (state.Owns(session, chunk)) own.push_back(chunk);
  }
  std::vector<MomentReport> moments(random->Between(1, 3));
  size_t at = random->Percent(70) ? 0 : random->Below(64);
  for (MomentReport& moment : moments) {
    moment.phase = static_cast<memtide::Phase>(random->Below(4));
    moment.name = absl::StrCat("module ", random->Below(4));
    moment.own_device = Bytes(random->Next());
    moment.continues = random->Percent(20);
    moment.ends_iteration = random->Percent(25);
    for (uint32_t use = random->Below(12); use > 0 && !own.empty(); --use) {
      const Access access = random->Percent(30) ? Access::kWrite : Access::kRead;
      moment.uses.push_back({own[at++ % own.size()], access});
    }
    if (random->Percent(5)) moment.uses.push_back({ChunkId(random->Next()), Access::kRead});
  }
  return moments;
}

std::optional<Event> MakeFetch(const State& state, SessionId session, Random* random) {
  FetchCall fetch;
  fetch.session = session;
  fetch.tier = PickTier(state, random);
  fetch.access = random->Percent(45) ? Access::kWrite : Access::kRead;
  const JobState* job = state.JobOf(session);
  const uint32_t slots = job->slots[static_cast<size_t>(fetch.tier)];
  // Slots are given back only where most are used.
  const uint32_t few = state.config.slot_regions ? 50 : 80;
  const uint32_t most = random->Percent(few) ? 2 : std::max(2u, slots);
  fetch.chunks = PickChunks(state, session, most, random);
  if (fetch.chunks.empty()) return std::nullopt;
  // A client that works through a model: what it gives back makes room for what it asks for.
  if (random->Percent(60)) fetch.releases = PickLeases(state, session, 60, random);
  fetch.wait = !random->Percent(15);
  if (random->Percent(40)) fetch.deadline = std::chrono::milliseconds(random->Between(1, 300));
  if (random->Percent(40)) {
    fetch.moments.emplace_back();
    for (const ChunkId chunk : fetch.chunks) {
      fetch.moments.back().uses.push_back({chunk, fetch.access});
    }
    fetch.moments.back().ends_iteration = random->Percent(10);
  }
  return fetch;
}

Event MakeResize(const State& state, SessionId session, Random* random) {
  ResizeCall resize;
  resize.session = session;
  const uint32_t least = 4;
  const uint32_t most = random->Percent(60) ? least + 2 : state.config.device_slots + 1;
  resize.device_share = state.JobOf(session)->chunk_size * random->Between(least, most);
  if (random->Percent(20)) resize.device_share += KiB(4);
  if (random->Percent(40)) resize.deadline = std::chrono::milliseconds(random->Between(1, 300));
  return resize;
}

// New content of some chunks, made from others: the rule is the simulation's own (StepResult), so
// that the work only says which chunk is which, and has as many bytes a copy as the step's number.
std::optional<Event> MakeStep(const State& state, SessionId session, uint64_t number,
                              Random* random) {
  const JobState* job = state.JobOf(session);
  if (job->slots[static_cast<size_t>(Tier::kHost)] == 0) return std::nullopt;
  StepCall step;
  step.session = session;
  step.chunks = PickChunks(state, session, random->Between(2, 5), random);
  if (step.chunks.size() < 2) return std::nullopt;
  const auto count = static_cast<uint32_t>(step.chunks.size());
  step.reads = random->Between((count + 1) / 2, count - 1);
  CopyWork work;
  for (uint32_t to = step.reads; to < count; ++to) work.copies.push_back({{0, 0}, {to, 0}, number});
  step.work = std::make_shared<const CopyWork>(std::move(work));
  if (random->Percent(40)) step.deadline = std::chrono::milliseconds(random->Between(1, 300));
  return step;
}

std::optional<Event> MakePublish(const State& state, SessionId session, Random* random) {
  const JobState& job = *state.JobOf(session);
  CommitCall publish;
  publish.session = session;
  publish.step = job.published + 1;
  if (random->Percent(15)) publish.step = job.published;                    // A retry.
  if (random->Percent(8)) publish.step = random->Below(4) * job.published;  // Out of order.
  for (const auto& [chunk, fresh] : job.stepped) {
    const bool again = std::count(publish.chunks.begin(), publish.chunks.end(), fresh) +
                           std::count(publish.shadows.begin(), publish.shadows.end(), chunk) +
                           std::count(publish.shadows.begin(), publish.shadows.end(), fresh) !=
                       0;
    const bool transient = state.IsTransient(chunk) || state.IsTransient(fresh);
    if (again || transient || publish.chunks.size() == state.config.limits.chunks_per_call)
      continue;
    if (random->Percent(10)) continue;
    publish.chunks.push_back(chunk);
    publish.shadows.push_back(fresh);
  }
  // Any two of its chunks may change places.
  if (publish.chunks.empty() || random->Percent(10)) {
    const std::vector<ChunkId> two = PickChunks(state, session, 2, random);
    if (two.size() < 2 || state.chunks.at(two[0]).undefined || state.chunks.at(two[1]).undefined) {
      return std::nullopt;
    }
    publish.chunks = {two[0]};
    publish.shadows = {two[1]};
  }
  if (random->Percent(4)) publish.shadows.pop_back();
  publish.keep_old_content = random->Percent(40);
  publish.manifest = absl::StrCat("step ", publish.step);
  return publish;
}

// As arenas of activations do.
void MakeActivations(const State& state, AllocateCall* allocate, Random* random) {
  if (random->Percent(50)) return;
  allocate->transient = true;
  allocate->undefined = random->Percent(70) && !state.config.persistent_jobs;
  if (state.HasHostHomes() && random->Percent(70)) allocate->home = Tier::kHost;
}

std::optional<Event> MakeReturn(const State& state, SessionId session, Random* random) {
  const SessionState& found = *state.FindSession(session);
  ReturnRegionsCall call;
  call.session = session;
  for (const RegionId region : found.asked_back) {
    if (random->Percent(80)) call.regions.push_back(region);
  }
  if (call.regions.empty()) return std::nullopt;
  // One that it may keep: nothing happens to it.
  if (random->Percent(20)) call.regions.push_back(*found.regions.begin());
  return call;
}

}  // namespace

std::vector<ChunkId> PickChunks(const State& state, SessionId session, uint32_t most,
                                Random* random) {
  std::vector<ChunkId> own;
  for (const auto& [chunk, chunk_state] : state.chunks) {
    if (state.Owns(session, chunk)) own.push_back(chunk);
  }
  for (size_t at = own.size(); at > 1; --at) {
    std::swap(own[at - 1], own[random->Below(static_cast<uint32_t>(at))]);
  }
  most = std::min(most, state.config.limits.chunks_per_call);
  const uint32_t count = random->Between(1, std::max(1u, most));
  if (own.size() > count) own.resize(count);
  return own;
}

OpenCall MakeOpen(const State& state, SessionId session, Random* random) {
  const Config& config = state.config;
  OpenCall open;
  open.session = session;
  if (config.job_names != 0 && random->Percent(80)) {
    open.job_name = absl::StrCat("job", random->Below(config.job_names));
  }
  open.chunk_size = config.chunk_size;
  open.device_share = config.chunk_size * config.device_share;
  open.host_share = config.chunk_size * config.host_share;
  open.ssd_share = config.chunk_size * config.ssd_share;
  // A share that is no multiple of the chunk: rounded down.
  if (random->Percent(20) && config.host_share != 0) open.host_share += KiB(4);
  if (!open.job_name.empty()) open.time_to_live = config.time_to_live;
  if (config.elastic) {
    open.elastic = true;
    // All sessions of a name ask for the same.
    if (open.job_name.empty() && random->Percent(20)) {
      open.host_share = config.chunk_size * random->Between(4, 12);
      open.ssd_share = config.chunk_size * random->Between(4, 20);
    }
  }
  if (config.slot_regions && random->Percent(10)) open.device_memory = MemoryKind::kCudaIpc;
  if (config.devices > 1 && random->Percent(60)) open.device = random->Below(config.devices);
  return open;
}

std::optional<Event> MakePart(const State& state, SessionId session, Random* random) {
  if (state.JobOf(session)->slots[static_cast<size_t>(Tier::kHost)] == 0) return std::nullopt;
  StepCall part;
  part.session = session;
  part.chunks = PickChunks(state, session, random->Between(2, 5), random);
  if (part.chunks.size() < 2) return std::nullopt;
  const auto count = static_cast<uint32_t>(part.chunks.size());
  part.reads =
      random->Percent(90) ? random->Between((count + 1) / 2, count - 1) : random->Between(0, count);
  // Sessions number their parts alike, and one again and again.
  part.part = random->Between(1, 4);
  while (state.HasPart({session, part.part})) ++part.part;
  if (random->Percent(40)) part.deadline = std::chrono::milliseconds(random->Between(1, 300));
  return part;
}

std::optional<Event> MakeRelease(const State& state, SessionId session, uint64_t request_id,
                                 const std::vector<ChunkId>& first, size_t count) {
  ReleaseCall release;
  release.session = session;
  release.request_id = request_id;
  const auto& leases = state.FindSession(session)->leases;
  const auto add = [&](ChunkId chunk) {
    if (leases.count(chunk) != 0 && release.chunks.size() < state.config.limits.chunks_per_call &&
        std::find(release.chunks.begin(), release.chunks.end(), chunk) == release.chunks.end()) {
      release.chunks.push_back(chunk);
    }
  };
  for (const ChunkId chunk : first) add(chunk);
  const size_t wanted = release.chunks.size() + count;
  for (const auto& [chunk, lease] : leases) {
    if (release.chunks.size() < wanted) add(chunk);
  }
  if (release.chunks.empty()) return std::nullopt;
  return release;
}

std::optional<Event> MakeCall(const State& state, OpKind kind, SessionId session,
                              uint64_t request_id, Random* random) {
  if (!state.IsOpen(session)) return std::nullopt;
  if (kind == OpKind::kAllocate) {
    AllocateCall allocate{CallId(), session, request_id, random->Between(1, 4)};
    if (random->Percent(30)) allocate.count = state.JobOf(session)->max_chunks / 2 + 1;
    allocate.count = std::min(allocate.count, state.config.limits.chunks_per_call);
    allocate.kind = static_cast<ChunkKind>(random->Below(kChunkKinds));
    // Where only the device has one, a restart may lose it: as good as anything, or torn.
    allocate.undefined = random->Percent(30) && !state.config.persistent_jobs;
    if (state.config.activations) MakeActivations(state, &allocate, random);
    return allocate;
  }
  if (kind == OpKind::kResize) return MakeResize(state, session, random);
  if (kind == OpKind::kReturnRegions) return MakeReturn(state, session, random);
  if (kind == OpKind::kFetch) return MakeFetch(state, session, random);
  if (kind == OpKind::kStep) return MakeStep(state, session, request_id, random);
  if (kind == OpKind::kPart) return MakePart(state, session, random);
  if (kind == OpKind::kPublish) return MakePublish(state, session, random);
  if (kind == OpKind::kReport) {
    return ReportCall{CallId(), session, MakeMoments(state, session, random)};
  }
  if (kind == OpKind::kRelease) {
    const std::vector<ChunkId> leases = PickLeases(state, session, 50, random);
    return MakeRelease(state, session, request_id, leases, leases.empty() ? 1 : 0);
  }
  const std::vector<ChunkId> chunks = PickChunks(state, session, 3, random);
  if (chunks.empty()) return std::nullopt;
  if (kind == OpKind::kEvict) {
    return EvictCall{CallId(), session, PickLowerTier(state, random), chunks};
  }
  if (kind == OpKind::kFree) return FreeCall{CallId(), session, request_id, chunks};
  if (kind == OpKind::kDiscard) return DiscardCall{CallId(), session, request_id, chunks};
  return DescribeCall{CallId(), session, chunks};
}

}  // namespace memtide::sim

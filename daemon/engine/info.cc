#include "daemon/engine/info.h"

#include <algorithm>

namespace memtide {

ChunkInfo InfoOf(const Core& core, ChunkIndex index) {
  const Chunk& chunk = core.chunks[index];
  ChunkInfo info;
  info.chunk = core.IdOf(index);
  info.job = chunk.job->id;
  info.kind = chunk.kind;
  info.version = chunk.version;
  info.on_device = chunk.valid_at(Tier::kDevice);
  info.on_host = chunk.valid_at(Tier::kHost);
  info.on_ssd = chunk.valid_at(Tier::kSsd);
  info.moving = chunk.copies().flight != nullptr;
  for (const Pin& pin : chunk.uses().pins) info.leases += pin.granted();
  info.torn = chunk.copies().torn;
  if (chunk.job->shares_contents()) info.names = core.ids.RankNames(index);
  return info;
}

JobInfo InfoOf(const Core& core, const Job& job) {
  JobInfo info;
  info.job = job.id;
  info.uid = job.uid;
  info.name = job.name;
  info.state = job.state();
  info.sessions = static_cast<uint32_t>(job.sessions.size());
  info.chunks = job.members.live();
  info.device = job.share(Tier::kDevice).pool().device;
  for (const Tier tier : kAllTiers) info.bytes[static_cast<int>(tier)] = job.share(tier).bytes();
  info.age = core.now - job.made_at;
  info.durable_every = job.snapshots.every;
  const std::vector<uint64_t>& saved = job.snapshots.saved_steps;
  if (!saved.empty()) info.durable_step = *std::min_element(saved.begin(), saved.end());
  if (job.state() == JobState::kLingering) {
    info.lingers_for = std::max(Duration(0), Duration(job.lingers_until - core.now));
  }
  return info;
}

}  // namespace memtide

// The names of chunks in the records of a job that keeps its ranks.
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/records/records.h"

namespace memtide {

// Whether each id names one chunk, and each rank has one id of it at most.
absl::Status Records::CheckNames(const JobRecord& record,
                                 const std::vector<const ChunkRecord*>& chunks) {
  std::set<ChunkId> ids;
  for (const ChunkRecord* chunk : chunks) {
    std::set<uint32_t> ranks;
    bool fits = record.ranks.empty() == chunk->names.empty();
    for (const RankName& name : chunk->names) {
      fits = fits && name.rank < record.ranks.size() && ranks.insert(name.rank).second &&
             ids.insert(name.id).second;
    }
    if (fits) continue;
    return absl::DataLossError(absl::StrCat("the record of chunk ", chunk->chunk.value(),
                                            " has names that the job's ranks cannot have"));
  }
  return absl::OkStatus();
}

// REQUIRES: CheckNames().
void Records::RestoreNames(Job& job, const std::vector<const ChunkRecord*>& chunks) {
  if (job.kept_ranks.empty()) return;
  for (const ChunkRecord* chunk : chunks) {
    const ChunkIndex index = IndexOf(chunk->chunk);
    if (chunk->names.size() == 1 && chunk->names[0].id == chunk->chunk) {
      core_.chunks[index].owner = job.kept_ranks[chunk->names[0].rank].session;
      continue;
    }
    std::vector<Name> names;
    for (const RankName& name : chunk->names) {
      names.push_back({name.id, job.kept_ranks[name.rank].session});
    }
    job.names.Restore(index, chunk->chunk, std::move(names));
  }
  job.names.RestoreEnds();
}

}  // namespace memtide

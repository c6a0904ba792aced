#include "daemon/engine/ids.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {

absl::optional<ChunkIndex> Ids::Find(const Job& job, ChunkId chunk) const {
  absl::optional<ChunkIndex> index = job.names.Find(chunk);
  if (index == kNoChunk) return absl::nullopt;
  if (!index.has_value()) index = chunks_.Find(chunk);
  return index.has_value() && chunks_[*index].job == &job ? index : absl::nullopt;
}

absl::optional<ChunkIndex> Ids::Find(const Session& session, ChunkId chunk) const {
  const Job& job = *session.job;
  const absl::optional<ChunkIndex> index = Find(job, chunk);
  if (!index.has_value() || !job.shares_contents()) return index;
  return NameOf(job, chunk, *index).owner == session.id ? index : absl::nullopt;
}

absl::StatusOr<std::vector<ChunkIndex>> Ids::Resolve(const Session& session,
                                                     const std::vector<ChunkId>& chunks,
                                                     absl::optional<size_t> limit) {
  const size_t most = limit.value_or(most_in_call_);
  if (chunks.empty()) return absl::InvalidArgumentError("the batch names no chunk");
  if (chunks.size() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch names ", chunks.size(), " chunks; at most ", most));
  }
  const uint64_t batch = next_batch_++;
  // The marks of a batch that is refused stay, and mean nothing to the next batch, which has
  // another number.
  std::vector<ChunkIndex> indices;
  indices.reserve(chunks.size());
  for (const ChunkId chunk : chunks) {
    const absl::optional<ChunkIndex> index = Find(session, chunk);
    if (!index.has_value()) {
      return absl::NotFoundError(absl::StrCat("there is no chunk ", chunk.value()));
    }
    if (chunks_[*index].batch_mark == batch) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", chunk.value(), " is named twice in the batch"));
    }
    chunks_[*index].batch_mark = batch;
    indices.push_back(*index);
  }
  return indices;
}

Name Ids::OwnName(ChunkIndex index) const { return {chunks_.IdOf(index), chunks_[index].owner}; }

Name Ids::NameOf(const Job& job, ChunkId id, ChunkIndex index) const {
  for (const Name& name : job.names.NamesOf(index)) {
    if (name.id == id) return name;
  }
  MEMTIDE_CHECK(chunks_.IdOf(index) == id);
  return OwnName(index);
}

bool Ids::IsShared(ChunkIndex index) const { return chunks_[index].job->names.IsShared(index); }

ChunkId Ids::IdFor(ChunkIndex index, SessionId id) const {
  const Session* const session = sessions_.Find(id);
  const Job& job = *chunks_[index].job;
  if (session != nullptr && !job.names.HasNameOf(index, id, OwnName(index))) {
    // To its client, the lease that it has left behind is that of the id.
    const absl::optional<ChunkId> left = session->left_behind.IdOf(index);
    if (left.has_value()) return *left;
  }
  return job.names.IdFor(index, id, chunks_.IdOf(index));
}

uint32_t Ids::RankOf(const Job& job, SessionId owner) const {
  for (uint32_t rank = 0; rank < job.kept_ranks.size(); ++rank) {
    if (job.kept_ranks[rank].session == owner) return rank;
  }
  const Session* const session = sessions_.Find(owner);
  return session == nullptr ? 0 : session->rank;
}

std::vector<RankName> Ids::RankNames(ChunkIndex index) const {
  const Job& job = *chunks_[index].job;
  std::vector<RankName> names;
  for (const Name& name : job.names.NamesOf(index)) {
    names.push_back({name.id, RankOf(job, name.owner)});
  }
  if (names.empty() && !job.names.IsUnnamed(index)) {
    names.push_back({chunks_.IdOf(index), RankOf(job, chunks_[index].owner)});
  }
  return names;
}

uint64_t Ids::Mark(const std::vector<ChunkIndex>& indices) {
  const uint64_t batch = next_batch_++;
  for (const ChunkIndex index : indices) chunks_[index].batch_mark = batch;
  return batch;
}

}  // namespace memtide

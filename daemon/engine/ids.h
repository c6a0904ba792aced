// Ids: which entry of the chunk table an id names, for a job and for a session. Engine-internal.
//
// A chunk's own id names its entry, unless ranks share contents: then the NameTable of the job says
// which entry each id names.
//
// Ownership: the tables outlive it.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_IDS_H_
#define MEMTIDE_DAEMON_ENGINE_IDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "daemon/engine/interface/record.h"
#include "daemon/engine/job.h"
#include "daemon/engine/tables/chunk_table.h"
#include "daemon/engine/tables/session_table.h"

namespace memtide {

class Ids {
 public:
  Ids(size_t most_in_call, ChunkTable& chunks, const SessionTable& sessions)
      : most_in_call_(most_in_call), chunks_(chunks), sessions_(sessions) {}

  // The indices of the chunks, or an error: no chunk, more than `limit` or than a call may name,
  // one unknown to the session, one named twice.
  absl::StatusOr<std::vector<ChunkIndex>> Resolve(const Session& session,
                                                  const std::vector<ChunkId>& chunks,
                                                  absl::optional<size_t> limit = absl::nullopt);
  // Marks the chunks with a number, which is in Chunk::batch_mark of no other.
  uint64_t Mark(const std::vector<ChunkIndex>& indices);

  // The index of a chunk of this job; nullopt when there is none.
  absl::optional<ChunkIndex> Find(const Job& job, ChunkId chunk) const;
  // The same for a chunk that the session may use: of its job, and where ranks share contents,
  // allocated by this session.
  absl::optional<ChunkIndex> Find(const Session& session, ChunkId chunk) const;

  Name OwnName(ChunkIndex index) const;
  Name NameOf(const Job& job, ChunkId id, ChunkIndex index) const;
  // Whether several ids name the entry.
  bool IsShared(ChunkIndex index) const;
  // Whether the session that writes the chunk has to get a copy first.
  bool MustCopyToWrite(ChunkIndex index) const {
    return IsShared(index) || chunks_[index].common() != nullptr;
  }
  // The id by which the session knows the entry.
  ChunkId IdFor(ChunkIndex index, SessionId session) const;

  // The rank of a session that has, or had, chunks of the job.
  uint32_t RankOf(const Job& job, SessionId owner) const;
  std::vector<RankName> RankNames(ChunkIndex index) const;

 private:
  const size_t most_in_call_;
  ChunkTable& chunks_;
  const SessionTable& sessions_;
  uint64_t next_batch_ = 1;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_IDS_H_

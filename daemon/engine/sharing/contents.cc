// Chunks that change what they hold with a commit, or at the device, while others read their common
// content (sharing/hidden_jobs.cc).
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/engine/errors.h"
#include "daemon/engine/sharing/rank_contents.h"

namespace memtide {

// A commit of a chunk whose content is common, and of a shadow chunk that has its own. The chunk
// gets that, and the shadow chunk the common content, or nothing if the old content ends.
// False: the job has no slot for a home of the shadow chunk, and nothing is changed.
bool RankContents::TakeFromShadow(Job& job, ChunkIndex chunk, ChunkIndex shadow, bool keep_old) {
  const Chunk& old = core_.chunks[chunk];
  const bool is_own = core_.chunks[shadow].common() == nullptr && !core_.ids.IsShared(shadow);
  if (old.common() == nullptr || core_.ids.IsShared(chunk) || !is_own || !old.repeats_offer)
    return false;
  absl::StatusOr<Home> home = Home();
  if (!keep_old) home = TakeHome(job, chunk);
  if (!home.ok()) return false;
  residency_.SwapContents(shadow, chunk);
  if (!keep_old) residency_.LeaveCommon(shadow, *std::move(home), TierSet());
  return true;
}

// A session is to write, at the device, what is common. The copy there becomes the chunk's own
// content when the lease is granted: a lease for reading stays where it is, as kernels may be
// running there. Returns what the chunks need then, by their number: a slot for a home, if a chunk
// is common. The error is TakeHome()'s, or UNAVAILABLE and to be called again: the copy is
// being compared with the content.
absl::StatusOr<std::vector<Home>> RankContents::TakeHomes(Job& job,
                                                          const std::vector<ChunkIndex>& indices) {
  std::vector<Home> homes(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    const Chunk& chunk = core_.chunks[indices[i]];
    if (chunk.common() == nullptr) continue;
    const Flight* const flight = chunk.copies().flight.get();
    if (flight != nullptr && flight->kind == StartTransfer::Kind::kCompareDeviceWithHost) {
      return CallAgain(
          absl::StrCat("chunk ", core_.IdOf(indices[i]).value(), " is being compared"));
    }
    MEMTIDE_ASSIGN_OR_RETURN(homes[i], TakeHome(job, indices[i]));
  }
  return homes;
}

// A commit of a chunk or shadow chunk whose content is common: what their ids name is exchanged.
// The content itself stays, as the old content of the pair.
void RankContents::ExchangeNames(Job& job, const CommitCall& event, size_t nth, ChunkIndex chunk,
                                 ChunkIndex shadow) {
  residency_.UnlinkShadow(chunk);
  residency_.UnlinkShadow(shadow);
  for (const ChunkId id : {event.chunks[nth], event.shadows[nth]}) {
    offers_.WithdrawOffer(*core_.sessions.Find(event.session), id);
  }
  job.names.Exchange(core_.ids.NameOf(job, event.chunks[nth], chunk), chunk,
                     core_.ids.OwnName(chunk), core_.ids.NameOf(job, event.shadows[nth], shadow),
                     shadow, core_.ids.OwnName(shadow));
}

}  // namespace memtide

// Chunks that change what they hold with a commit, or at the device, while others read their common
// content (sharing/hidden_jobs.cc).
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/engine/errors.h"
#include "daemon/engine/sharing/rank_contents.h"

namespace memtide {

bool RankContents::TakeFromShadow(Job& job, ChunkIndex chunk, ChunkIndex shadow, bool keep_old) {
  const Chunk& old = core_.chunks[chunk];
  const bool is_own = core_.chunks[shadow].common() == nullptr && !core_.ids.IsShared(shadow);
  if (old.common() == nullptr || core_.ids.IsShared(chunk) || !is_own || !old.repeats_offer)
    return false;
  // A transfer may read the common content, which ends here with its last reader.
  if (!keep_old && old.copies().flight != nullptr) return false;
  absl::StatusOr<Home> home = Home();
  if (!keep_old) home = TakeHome(job, chunk);
  if (!home.ok()) return false;
  residency_.SwapContents(shadow, chunk);
  if (!keep_old) residency_.LeaveCommon(shadow, *std::move(home), TierSet());
  return true;
}

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

#include "daemon/engine/residency/scrubber.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/content_sums.h"
#include "daemon/engine/residency/copies.h"

namespace memtide {
namespace {

// A call that comes to wait for the chunk waits this long at most, and every piece has whole sums.
constexpr Bytes kScrubbedAtOnce = MiB(4);
static_assert(kScrubbedAtOnce.count() % kSummedPiece.count() == 0);
// Scrubbing has this part of a drive's time at most, and so of its bandwidth.
constexpr int kScrubPart = 100;
// Most chunks that one event examines.
constexpr int kMostExamined = 256;

}  // namespace

void Scrubber::ScrubNext() {
  if (core_.options.verify == Verify::kOff || core_.draining || scrubbing_.has_value()) return;
  if (core_.now < next_scrub_) return;
  if (const absl::optional<ChunkIndex> index = NextToScrub()) StartScrub(*index);
}

// From scrub_ on, which is then the place of the chunk. Nothing: the round has ended, or there are
// too many others in a row; the next Tick goes on.
absl::optional<ChunkIndex> Scrubber::NextToScrub() {
  int examined = 0;
  for (auto job = core_.jobs.lower_bound(scrub_.job); job != core_.jobs.end(); ++job) {
    if (job->first != scrub_.job) scrub_ = {job->first};
    if (++examined > kMostExamined) return absl::nullopt;
    // Nothing of a job moves while its host memory is replaced; its turn comes in the next round.
    if (job->second->is_replacing()) continue;
    const MemberTable& members = job->second->members;
    while (scrub_.member.value() < members.size()) {
      const ChunkIndex index = members[scrub_.member];
      if (index != kNoChunk && core_.chunks[index].live()) {
        const Chunk& chunk = core_.chunks[index];
        const bool at_rest = !chunk.copies().flight && chunk.uses().waiters.empty();
        const bool has_more = scrub_.offset < chunk.job->chunk_size;
        const bool has_sums =
            chunk.valid_at(Tier::kSsd) && !residency_.SumsToCompare(chunk).empty();
        // A copy that is known to be bad, and is the only one, is read by calls alone.
        if (at_rest && has_more && has_sums && !chunk.copies().unreadable) {
          return index;
        }
      }
      scrub_ = {job->first, Member(scrub_.member.value() + 1)};
      if (++examined >= kMostExamined) return absl::nullopt;
    }
  }
  scrub_ = {};
  return absl::nullopt;
}

void Scrubber::StartScrub(ChunkIndex index) {
  const Chunk& chunk = core_.chunks[index];
  StartTransfer start;
  start.kind = StartTransfer::Kind::kVerifySsd;
  start.job = chunk.job->id;
  start.size = std::min(kScrubbedAtOnce, chunk.job->chunk_size - scrub_.offset);
  const MemoryPlace file = PlaceOf(chunk, Tier::kSsd);
  start.store = {StoreId(file.region.value()), file.offset + scrub_.offset};
  const auto first =
      chunk.copies().sums.begin() + static_cast<std::ptrdiff_t>(scrub_.offset / kSummedPiece);
  start.sums.assign(first, first + static_cast<std::ptrdiff_t>(SumsOfSize(start.size)));
  scrubbing_ = residency_.Begin(index, absl::nullopt, Tier::kSsd, std::move(start));
  scrub_began_ = core_.now;
}

void Scrubber::On(const ScrubEnded& ended) {
  scrubbing_.reset();
  next_scrub_ = scrub_began_ + (core_.now - scrub_began_) * kScrubPart;
  const absl::optional<ChunkIndex> index = core_.chunks.Find(ended.chunk);
  if (!index.has_value()) return;
  const Chunk& chunk = core_.chunks[*index];
  // The content has been written anew meanwhile, or has moved to the chunk by a commit.
  const bool same = ended.version == chunk.version && chunk.member == scrub_.member &&
                    chunk.job->id == scrub_.job;
  if (!same) return;
  if (ended.status.ok()) {
    core_.counters.scrubbed += ended.verified;
    scrub_.offset += ended.verified;
    scrub_.failed.reset();
  } else if (absl::IsDataLoss(ended.status) && scrub_.failed != ended.version) {
    scrub_.failed = ended.version;  // The same piece is read once more.
  } else {
    if (absl::IsDataLoss(ended.status)) residency_.BadCopy(*index, ended.status);
    scrub_ = {scrub_.job, Member(scrub_.member.value() + 1)};
  }
}

}  // namespace memtide

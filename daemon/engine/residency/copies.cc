#include "daemon/engine/residency/copies.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace memtide {
namespace {

constexpr size_t kMomentsNamed = 3;

}  // namespace

MemoryPlace PlaceOf(const Chunk& chunk, Tier tier) {
  if (!chunk.takes_room_at(tier)) {
    return chunk.common()->of->job->share(tier).PlaceOf(chunk.common()->slot.number());
  }
  return chunk.job->share(tier).PlaceOf(chunk.slot(tier).number());
}

bool IsOnlyCopy(const Chunk& chunk, Tier tier) {
  TierSet valid = chunk.copies().valid;
  // Device memory ends with its GPU, and with the daemon, which a job with a name outlives.
  if (chunk.job->time_to_live > Duration(0) && !chunk.transient && tier == Tier::kHost) {
    valid.Remove(Tier::kDevice);
  }
  return valid.is_only(tier);
}

bool IsSuperseded(const ChunkTable& chunks, const Chunk& chunk) {
  if (chunk.counterpart == kNoChunk || chunk.is_shadow || !chunks[chunk.counterpart].has_content())
    return false;
  const AccessPredictor& predictor = chunk.job->forecast.predictor();
  return predictor.has_prediction() && predictor.NextUse(chunk.member) >= predictor.iteration_end();
}

VirtualTime NextUseOfContent(const ChunkTable& chunks, const Chunk& chunk) {
  const AccessPredictor& predictor = chunk.job->forecast.predictor();
  const VirtualTime own = predictor.NextUse(chunk.member);
  if (!chunk.is_shadow || !chunk.has_content() || own < predictor.iteration_end()) return own;
  return predictor.UseAfterIteration(chunks[chunk.counterpart].member);
}

absl::optional<uint32_t> MomentsUntilUse(const ChunkTable& chunks, const Chunk& chunk) {
  const Job& job = *chunk.job;
  const AccessPredictor& predictor = job.forecast.predictor();
  if (!predictor.has_prediction()) return absl::nullopt;
  const VirtualTime next = NextUseOfContent(chunks, chunk);
  // The prediction does not name the chunk.
  if (next >= AccessPredictor::kUnknown) return absl::nullopt;
  return job.trace.MomentsUntil(next - predictor.now());
}

std::string LastMomentsOf(const Chunk& chunk) {
  TraceReply traced;
  chunk.job->trace.AddTo(&traced);
  std::vector<std::string> names;
  for (auto moment = traced.moments.rbegin();
       moment != traced.moments.rend() && names.size() < kMomentsNamed; ++moment) {
    const bool uses = std::any_of(moment->uses.begin(), moment->uses.end(),
                                  [&](uint32_t use) { return use / 4 == chunk.member.value(); });
    if (uses && !moment->name.empty()) names.push_back(absl::StrCat("\"", moment->name, "\""));
  }
  if (names.empty()) return "";
  return absl::StrCat("The last moments that used the chunk: ", absl::StrJoin(names, ", "), ". ");
}

}  // namespace memtide

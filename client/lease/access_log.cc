#include "client/lease/access_log.h"

#include <utility>

#include "proto/protocol.h"

namespace memtide::client {

void AccessLog::Begin(Moment moment) {
  begun_ = true;
  ++number_;
  if (moment.name.size() > kMaxMomentNameBytes) moment.name.resize(kMaxMomentNameBytes);
  moments_.push_back(std::move(moment));
  Bound();
}

Moment* AccessLog::Current() {
  if (moments_.empty() || moments_.back().ends_iteration) {
    moments_.emplace_back();
    moments_.back().continues = true;
  }
  return &moments_.back();
}

void AccessLog::EndIteration() {
  begun_ = true;
  Current()->ends_iteration = true;
  ++ends_;
  ++number_;
  last_.clear();
  Bound();
}

void AccessLog::Record(ChunkId chunk, Access access) {
  // A program that gives no hints is served by last use alone, so its uses are not recorded.
  if (!begun_) return;
  const bool write = access == Access::kWrite;
  uint64_t& last = last_[chunk.value()];
  const uint64_t now = number_ * 2 + write;
  // A use counts once per moment, and a write once more than the reads before it.
  if (last >= now) return;
  last = now;
  Current()->uses.push_back({chunk, access});
  ++uses_;
  Bound();
}

// The log grows only if the program never fetches. Then all its chunks are leased, and dropping the
// records costs nothing. Half of what one call may carry leaves the message room for a step's
// pieces.
void AccessLog::Bound() {
  if (last_.size() > limits_.uses_per_call) last_.clear();  // It also holds freed chunks.
  if (moments_.size() <= limits_.moments_per_call / 2 && uses_ <= limits_.uses_per_call / 2 &&
      ends_ <= limits_.iteration_ends_per_call) {
    return;
  }
  moments_.clear();
  uses_ = ends_ = 0;
}

std::vector<Moment> AccessLog::Take() {
  uses_ = ends_ = 0;
  return std::exchange(moments_, {});
}

}  // namespace memtide::client

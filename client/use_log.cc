#include "client/use_log.h"

#include <utility>

namespace memtide::client {

void UseLog::Begin(Moment moment) {
  begun_ = true;
  ++number_;
  if (moment.name.size() > kMaxNameBytes) moment.name.resize(kMaxNameBytes);
  moments_.push_back(std::move(moment));
  Bound();
}

// The one that uses are noted in: what was taken away goes on.
Moment* UseLog::Current() {
  if (moments_.empty() || moments_.back().ends_iteration) {
    moments_.emplace_back();
    moments_.back().continues = true;
  }
  return &moments_.back();
}

void UseLog::EndIteration() {
  begun_ = true;
  Current()->ends_iteration = true;
  ++ends_;
  ++number_;
  last_.clear();
  Bound();
}

void UseLog::Use(ChunkId chunk, Access access) {
  if (!begun_) return;
  const bool write = access == Access::kWrite;
  uint64_t& last = last_[chunk.value()];
  const uint64_t now = number_ * 2 + write;
  if (last / 2 == number_ && last >= now) return;
  last = now;
  Current()->uses.push_back({chunk, access});
  ++uses_;
  Bound();
}

// A program that uses what it has and never asks for more: nobody needs to foresee for it.
void UseLog::Bound() {
  if (last_.size() > kMaxUses) last_.clear();  // Chunks that are long gone are among them.
  if (moments_.size() <= kMaxMoments && uses_ <= kMaxUses && ends_ <= kMaxEnds) return;
  moments_.clear();
  uses_ = ends_ = 0;
}

std::vector<Moment> UseLog::Take() {
  uses_ = ends_ = 0;
  return std::exchange(moments_, {});
}

}  // namespace memtide::client

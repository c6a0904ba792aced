#include "daemon/engine/tables/shared_parts.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace memtide {

namespace {

// The reads of a job's parts, of 32 bytes each; those of 60,000 chunks of weights with gradients
// and two states.
constexpr size_t kMostReads = size_t{1} << 18;
// Parts that are compared with one: all of one session have the same elements, if it says so.
constexpr int kMostCompared = 64;

}  // namespace

SharedPart* SharedParts::Find(const PartKey& key) {
  const auto found = parts_.find(key);
  return found == parts_.end() ? nullptr : &found->second;
}

const SharedParts::Map::value_type* SharedParts::WriterOf(ChunkIndex index) const {
  const auto found = writers_.find(index);
  return found == writers_.end() ? nullptr : &*found->second;
}

const SharedParts::Map::value_type* SharedParts::SameElements(const PartKey& key, SessionId session,
                                                              uint64_t step) const {
  auto part = parts_.lower_bound(PartKey{{key.work.high, 0}, {}, 0});
  for (int i = 0; i < kMostCompared && part != parts_.end(); ++i, ++part) {
    if (part->first.work.high != key.work.high) break;
    if (part->second.maker != session && part->second.step == step) return &*part;
  }
  return nullptr;
}

void SharedParts::Begin(PartKey key, SharedPart part) {
  const auto [entry, is_new] = parts_.emplace(std::move(key), std::move(part));
  MEMTIDE_CHECK(is_new) << "a part is begun twice";
  reads_ += entry->first.reads.size();
  const SharedPart& begun = entry->second;
  MEMTIDE_CHECK(making_.emplace(std::make_pair(begun.maker, begun.number), entry).second);
  for (const ChunkIndex index : begun.writes) {
    MEMTIDE_CHECK(writers_.emplace(index, entry).second) << "two parts write entry " << index;
  }
}

SharedParts::Ended SharedParts::End(SessionId maker, uint64_t number, bool computed) {
  const auto found = making_.find({maker, number});
  if (found == making_.end()) return {};
  const Map::iterator part = found->second;
  making_.erase(found);
  SharedPart& ending = part->second;
  Ended ended{std::exchange(ending.waiting, {}), computed ? &ending : nullptr};
  ending.number = 0;
  ending.made_as = have_been_made_++;
  made_.emplace(ending.made_as, part);
  if (!computed) Forget(part);
  while (reads_ > kMostReads && made_.size() > 1) Forget(made_.begin()->second);
  return ended;
}

void SharedParts::Forget(const PartKey& key) {
  const auto found = parts_.find(key);
  MEMTIDE_CHECK(found != parts_.end());
  Forget(found);
}

void SharedParts::Forget(Map::iterator part) {
  MEMTIDE_CHECK(part->second.is_done());
  EraseWriters(part);
  made_.erase(part->second.made_as);
  reads_ -= part->first.reads.size();
  parts_.erase(part);
}

void SharedParts::EraseWriters(Map::iterator part) {
  for (const ChunkIndex index : part->second.writes) {
    const auto writer = writers_.find(index);
    if (writer != writers_.end() && writer->second == part) writers_.erase(writer);
  }
}

void SharedParts::Move(ChunkIndex from, ChunkIndex to, ChunkId id, Version version) {
  const auto writer = writers_.find(from);
  if (writer == writers_.end() || !writer->second->second.is_done()) return;
  const Map::iterator part = writer->second;
  writers_.erase(writer);
  MEMTIDE_CHECK(writers_.emplace(to, part).second);
  SharedPart& moved = part->second;
  const auto at = std::find(moved.writes.begin(), moved.writes.end(), from);
  moved.results[at - moved.writes.begin()] = {id, version};
  *at = to;
}

void SharedParts::ForgetWriter(ChunkIndex index) {
  const auto writer = writers_.find(index);
  if (writer == writers_.end()) return;
  const Map::iterator part = writer->second;
  writers_.erase(writer);
  if (part->second.is_done()) Forget(part);
}

template <typename Condition>
std::vector<WaitingPart> SharedParts::Take(Condition condition) {
  std::vector<WaitingPart> taken;
  for (const auto& [maker, making] : making_) {
    std::vector<WaitingPart>& all = making->second.waiting;
    std::vector<WaitingPart> rest;
    for (WaitingPart& waiting : all) {
      (condition(waiting) ? taken : rest).push_back(std::move(waiting));
    }
    all = std::move(rest);
  }
  return taken;
}

std::vector<WaitingPart> SharedParts::TakeWaiting(SessionId session) {
  return Take([session](const WaitingPart& waiting) { return waiting.call.session == session; });
}

std::vector<WaitingPart> SharedParts::TakeLate(Instant now) {
  return Take([now](const WaitingPart& waiting) { return now >= waiting.deadline; });
}

}  // namespace memtide

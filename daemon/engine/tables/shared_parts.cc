#include "daemon/engine/tables/shared_parts.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace memtide {

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
  for (auto part = parts_.lower_bound(PartKey{{key.work.high, 0}, {}, 0});
       part != parts_.end() && part->first.work.high == key.work.high; ++part) {
    if (part->second.maker != session && part->second.step == step) return &*part;
  }
  return nullptr;
}

void SharedParts::Begin(PartKey key, SharedPart part) {
  const std::vector<ChunkIndex> writes = part.writes;
  const auto [entry, is_new] = parts_.emplace(std::move(key), std::move(part));
  MEMTIDE_CHECK(is_new) << "a part is begun twice";
  for (const ChunkIndex index : writes) {
    MEMTIDE_CHECK(writers_.emplace(index, entry).second) << "two parts write entry " << index;
  }
}

SharedParts::Ended SharedParts::End(SessionId maker, uint64_t number, bool computed) {
  const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const auto& entry) {
    return entry.second.maker == maker && entry.second.number == number;
  });
  if (number == 0 || found == parts_.end()) return {};
  SharedPart& part = found->second;
  Ended ended{std::exchange(part.waiting, {}), computed ? &part : nullptr};
  part.number = 0;
  if (!computed) Forget(PartKey(found->first));
  return ended;
}

void SharedParts::Forget(const PartKey& key) {
  const auto found = parts_.find(key);
  MEMTIDE_CHECK(found != parts_.end() && found->second.is_made());
  EraseWriters(found);
  parts_.erase(found);
}

void SharedParts::EraseWriters(Map::iterator part) {
  for (const ChunkIndex index : part->second.writes) {
    const auto writer = writers_.find(index);
    if (writer != writers_.end() && writer->second == part) writers_.erase(writer);
  }
}

void SharedParts::Moved(ChunkIndex from, ChunkIndex to, ChunkId id, Version version) {
  // What `to` held before has moved the other way, and is a result no more.
  ForgetWriter(to);
  const auto writer = writers_.find(from);
  if (writer == writers_.end() || !writer->second->second.is_made()) return;
  const Map::iterator part = writer->second;
  writers_.erase(writer);
  writers_.emplace(to, part);
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
  if (part->second.is_made()) Forget(PartKey(part->first));
}

void SharedParts::ForgetBefore(uint64_t step) {
  for (auto part = parts_.begin(); part != parts_.end();) {
    if (!part->second.is_made() || part->second.step >= step) {
      ++part;
      continue;
    }
    EraseWriters(part);
    part = parts_.erase(part);
  }
}

template <typename Condition>
std::vector<WaitingPart> SharedParts::Take(Condition condition) {
  std::vector<WaitingPart> taken;
  for (auto& [key, part] : parts_) {
    std::vector<WaitingPart> rest;
    for (WaitingPart& waiting : part.waiting) {
      (condition(waiting) ? taken : rest).push_back(std::move(waiting));
    }
    part.waiting = std::move(rest);
  }
  return taken;
}

std::vector<WaitingPart> SharedParts::TakeWaiting(SessionId session) {
  return Take([session](const WaitingPart& waiting) { return waiting.call.session == session; });
}

std::vector<WaitingPart> SharedParts::TakeLate(Instant now) {
  return Take([now](const WaitingPart& waiting) { return now >= waiting.deadline; });
}

size_t SharedParts::waiting() const {
  size_t count = 0;
  for (const auto& [key, part] : parts_) count += part.waiting.size();
  return count;
}

}  // namespace memtide

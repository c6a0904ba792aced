#include "daemon/engine/tables/name_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace memtide {

namespace {

std::vector<Name>::iterator FindId(std::vector<Name>& names, ChunkId id) {
  return std::find_if(names.begin(), names.end(), [id](const Name& name) { return name.id == id; });
}

}  // namespace

absl::optional<ChunkIndex> NameTable::Find(ChunkId id) const {
  const auto found = moved_.find(id);
  if (found == moved_.end()) return absl::nullopt;
  return found->second;
}

bool NameTable::IsShared(ChunkIndex index) const { return NamesOf(index).size() > 1; }

const std::vector<Name>& NameTable::NamesOf(ChunkIndex index) const {
  const auto found = entries_.find(index);
  return found == entries_.end() ? none_ : found->second.names;
}

ChunkId NameTable::IdFor(ChunkIndex index, SessionId session, ChunkId own) const {
  const std::vector<Name>& names = NamesOf(index);
  if (names.empty()) return own;
  const auto of_session = std::find_if(
      names.begin(), names.end(), [session](const Name& name) { return name.owner == session; });
  return of_session == names.end() ? names.front().id : of_session->id;
}

bool NameTable::HasNameOf(ChunkIndex index, SessionId session, const Name& own) const {
  if (entries_.count(index) == 0) return own.owner == session;
  const std::vector<Name>& names = NamesOf(index);
  return std::any_of(names.begin(), names.end(),
                     [session](const Name& name) { return name.owner == session; });
}

bool NameTable::Shares(SessionId session) const {
  return std::any_of(entries_.begin(), entries_.end(), [session](const auto& entry) {
    const std::vector<Name>& names = entry.second.names;
    return names.size() > 1 && std::any_of(names.begin(), names.end(), [session](const Name& name) {
             return name.owner == session;
           });
  });
}

std::vector<Name>& NameTable::Listed(ChunkIndex index, const Name& own) {
  const auto [entry, is_new] = entries_.try_emplace(index);
  if (is_new) entry->second = {own.id, {own}};
  return entry->second.names;
}

bool NameTable::Move(const Name& name, ChunkIndex from, const Name& from_own, ChunkIndex to,
                     const Name& to_own) {
  MEMTIDE_CHECK(from != to);
  std::vector<Name>& target = Listed(to, to_own);
  MEMTIDE_CHECK(std::none_of(target.begin(), target.end(),
                             [&name](const Name& other) { return other.owner == name.owner; }))
      << "two ids of one session for entry " << to;
  target.push_back(name);
  std::vector<Name>& source = Listed(from, from_own);
  const auto found = FindId(source, name.id);
  MEMTIDE_CHECK(found != source.end()) << "id " << name.id << " does not name entry " << from;
  source.erase(found);
  moved_[name.id] = to;
  return source.empty();
}

void NameTable::Exchange(const Name& a, ChunkIndex index_a, const Name& a_own, const Name& b,
                         ChunkIndex index_b, const Name& b_own) {
  MEMTIDE_CHECK(a.owner == b.owner && index_a != index_b);
  std::vector<Name>& names_a = Listed(index_a, a_own);
  std::vector<Name>& names_b = Listed(index_b, b_own);
  const auto at_a = FindId(names_a, a.id), at_b = FindId(names_b, b.id);
  MEMTIDE_CHECK(at_a != names_a.end() && at_b != names_b.end());
  std::swap(*at_a, *at_b);
  moved_[a.id] = index_b;
  moved_[b.id] = index_a;
}

void NameTable::AddUnnamed(ChunkIndex index, ChunkId own) {
  MEMTIDE_CHECK(entries_.count(index) == 0);
  entries_[index].own = own;
  moved_[own] = kNoChunk;
}

bool NameTable::IsUnnamed(ChunkIndex index) const {
  const auto found = entries_.find(index);
  return found != entries_.end() && found->second.names.empty();
}

void NameTable::ChangeOwner(SessionId from, SessionId to) {
  for (auto& [index, entry] : entries_) {
    for (Name& name : entry.names) {
      MEMTIDE_CHECK(name.owner != to);
      if (name.owner == from) name.owner = to;
    }
  }
}

void NameTable::Restore(ChunkIndex index, ChunkId own, std::vector<Name> names) {
  MEMTIDE_CHECK(entries_.count(index) == 0);
  for (const Name& name : names) {
    if (name.id != own) moved_[name.id] = index;
  }
  entries_[index] = {own, std::move(names)};
}

void NameTable::RestoreEnds() {
  // An id that names no entry was freed before its own entry.
  for (const auto& [index, entry] : entries_) {
    const ChunkId own = entry.own;
    const bool names_it = std::any_of(entry.names.begin(), entry.names.end(),
                                      [own](const Name& name) { return name.id == own; });
    if (!names_it) moved_.emplace(own, kNoChunk);
  }
}

void NameTable::RemoveShared(SessionId session) {
  for (auto& [index, entry] : entries_) {
    const auto found = std::find_if(entry.names.begin(), entry.names.end(),
                                    [session](const Name& name) { return name.owner == session; });
    if (entry.names.size() > 1 && found != entry.names.end()) Remove(found->id, index);
  }
}

void NameTable::Remove(ChunkId id, ChunkIndex index) {
  MEMTIDE_CHECK(IsShared(index));
  std::vector<Name>& names = entries_.find(index)->second.names;
  const auto found = FindId(names, id);
  MEMTIDE_CHECK(found != names.end());
  names.erase(found);
  ForgetId(id);
}

void NameTable::ForgetId(ChunkId id) {
  // As long as its own entry exists, the table of chunks would find that by the id.
  const auto own = entries_.find(IndexOf(id));
  if (own != entries_.end() && own->second.own == id) {
    moved_[id] = kNoChunk;
  } else {
    moved_.erase(id);
  }
}

void NameTable::Forget(ChunkIndex index) {
  const auto entry = entries_.find(index);
  if (entry == entries_.end()) return;
  const Entry forgotten = std::move(entry->second);
  entries_.erase(entry);
  for (const Name& name : forgotten.names) ForgetId(name.id);
  const auto own = moved_.find(forgotten.own);
  if (own != moved_.end() && own->second == kNoChunk) moved_.erase(own);
}

void NameTable::CheckInvariants() const {
  size_t named = 0;
  for (const auto& [index, entry] : entries_) {
    const std::vector<Name>& names = entry.names;
    for (size_t i = 0; i < names.size(); ++i) {
      for (size_t j = 0; j < i; ++j) MEMTIDE_CHECK(names[i].owner != names[j].owner);
      const auto moved = moved_.find(names[i].id);
      MEMTIDE_CHECK(moved == moved_.end() ? IndexOf(names[i].id) == index : moved->second == index);
      named += moved != moved_.end();
    }
  }
  for (const auto& [id, index] : moved_) named += index == kNoChunk;
  MEMTIDE_CHECK(named == moved_.size()) << "an id names an entry that does not know it";
}

}  // namespace memtide

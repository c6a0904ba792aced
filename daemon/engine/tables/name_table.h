// NameTable: the ids of one job's chunks that name other entries of the chunk table than their own.
// Engine-internal.
//
// A chunk id says which entry of the chunk table is its own, and names that entry until ranks come
// to share contents: then the ids of several sessions name one entry. A session has at most one id
// for each entry. An id that is moved keeps its bytes of identity, so no client learns of it.
//
// Only entries that have, or had, other ids than their own are kept here.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_NAME_TABLE_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_NAME_TABLE_H_

#include <cstddef>
#include <map>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/engine/interface/types.h"

namespace memtide {

// An id, and the session that allocated it.
struct Name {
  ChunkId id;
  SessionId owner;
};

class NameTable {
 public:
  // The entry that the id names; kNoChunk: the id was freed; nullopt: the id's own entry, as far as
  // this table knows.
  absl::optional<ChunkIndex> Find(ChunkId id) const;

  // Whether several ids name the entry.
  bool IsShared(ChunkIndex index) const;
  // The ids of the entry; empty: its own alone.
  const std::vector<Name>& NamesOf(ChunkIndex index) const;
  // The id by which a session knows the entry: its own one, or any.
  ChunkId IdFor(ChunkIndex index, SessionId session, ChunkId own) const;
  // Whether an id of the session names the entry, whose own name is `own`.
  bool HasNameOf(ChunkIndex index, SessionId session, const Name& own) const;
  // Some ids of the session name shared entries.
  bool Shares(SessionId session) const;

  // `name`, which named `from`, names `to`. `from_own` and `to_own` are the entries' own names.
  // True: no id names `from` any more. REQUIRES: from != to, and `to` has no name of that owner.
  bool Move(const Name& name, ChunkIndex from, const Name& from_own, ChunkIndex to,
            const Name& to_own);
  // The ids of these two names, of one session, exchange their entries.
  void Exchange(const Name& a, ChunkIndex index_a, const Name& a_own, const Name& b,
                ChunkIndex index_b, const Name& b_own);
  // The entry is new, and no client has its own id.
  void AddUnnamed(ChunkIndex index, ChunkId own);
  // Whether no id names the entry, as far as this table knows.
  bool IsUnnamed(ChunkIndex index) const;
  // The ids of one session are those of another, which has none.
  void ChangeOwner(SessionId from, SessionId to);
  // The entry, whose own id is `own`, has these names, and no others. REQUIRES: the table has
  // neither the entry nor one of the ids. RestoreEnds() follows when all entries are there.
  void Restore(ChunkIndex index, ChunkId own, std::vector<Name> names);
  void RestoreEnds();
  // The ids of a session that ends name no shared entry any more.
  void RemoveShared(SessionId session);
  // The id of an entry with several ids is freed. REQUIRES: IsShared(index).
  void Remove(ChunkId id, ChunkIndex index);
  // The entry is freed with all ids that name it.
  void Forget(ChunkIndex index);

  // Ids that name other entries than their own, or none.
  size_t moved() const { return moved_.size(); }

  void CheckInvariants() const;

 private:
  struct Entry {
    ChunkId own;
    std::vector<Name> names;  // In the order in which they came.
  };

  std::vector<Name>& Listed(ChunkIndex index, const Name& own);
  void ForgetId(ChunkId id);

  std::map<ChunkId, ChunkIndex> moved_;  // kNoChunk: freed before its own entry.
  std::map<ChunkIndex, Entry> entries_;
  std::vector<Name> none_;  // Always empty.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_NAME_TABLE_H_

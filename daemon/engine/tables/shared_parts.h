// SharedParts: the step parts that the ranks of one job have made, or are making, since the last
// commit. Engine-internal.
//
// Ranks whose gradients are equal want the same parts. The first one that asks for a part makes it,
// the others wait for it, and then their ids name its results. What a part computes is compared as
// a whole: the work, and for each chunk that is read either its content, where ranks share it, or
// the digest of its bytes.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_SHARED_PARTS_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_SHARED_PARTS_H_

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "base/count.h"
#include "base/digest.h"
#include "daemon/engine/interface/events.h"
#include "daemon/engine/interface/types.h"

namespace memtide {

// What one chunk that is read holds: a shared entry and its version, or a digest.
using ReadContent = std::pair<Digest, std::pair<ChunkIndex, Version>>;

struct PartKey {
  Digest work;
  std::vector<ReadContent> reads;
  size_t writes = 0;

  friend bool operator<(const PartKey& a, const PartKey& b) {
    return std::tie(a.work, a.reads, a.writes) < std::tie(b.work, b.reads, b.writes);
  }
};

// A call that waits until another rank has made the part.
struct WaitingPart {
  StepCall call;
  Instant deadline;
  Count::Token of_session;  // In its waiting_calls.
};

struct SharedPart {
  SessionId maker;
  uint32_t rank = 0;    // The maker's.
  uint64_t number = 0;  // The maker's number of the part; zero: it is made.
  uint64_t step = 0;  // The step of the maker, by its number of commits.
  std::vector<ChunkIndex> writes;
  std::vector<Version> versions;  // Of `writes`, once it is made: others are no results of it.
  std::vector<WaitingPart> waiting;

  bool is_made() const { return number == 0; }
};

class SharedParts {
 public:
  using Map = std::map<PartKey, SharedPart>;

  // nullptr: no session has begun it.
  SharedPart* Find(const PartKey& key);
  // The part that writes the entry, if any does; nullptr: none.
  const Map::value_type* WriterOf(ChunkIndex index) const;

  // Another session's part of the same elements, in this step; nullptr: none.
  const Map::value_type* SameElements(const PartKey& key, SessionId session, uint64_t step) const;

  // REQUIRES: no part with this key, and none that writes one of the entries, is there.
  void Begin(PartKey key, SharedPart part);
  // The maker's part with this number has ended. Returns the calls that wait for it, and the
  // entries with its results; if it was not `computed`, it is forgotten.
  struct Ended {
    std::vector<WaitingPart> waiting;
    std::vector<ChunkIndex> writes;
  };
  Ended End(SessionId maker, uint64_t number, bool computed);
  // Forgets a part that is made. REQUIRES: it is.
  void Forget(const PartKey& key);
  // The entries that the maker's part with this number writes; empty: there is none.
  std::vector<ChunkIndex> WritesOf(SessionId maker, uint64_t number) const;
  // The maker's part with this number has these results.
  void SetVersions(SessionId maker, uint64_t number, std::vector<Version> versions);
  // A commit has moved what entry `from` holds to entry `to`, which has this version now.
  void Moved(ChunkIndex from, ChunkIndex to, Version version);
  // Forgets the parts that are made and of a step before this one.
  void ForgetBefore(uint64_t step);

  // Takes the calls of a session that ends, or whose deadline has come.
  std::vector<WaitingPart> TakeWaiting(SessionId session);
  std::vector<WaitingPart> TakeLate(Instant now);

  size_t waiting() const;

 private:
  template <typename Condition>
  std::vector<WaitingPart> Take(Condition condition);

  Map parts_;
  std::map<ChunkIndex, Map::iterator> writers_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_SHARED_PARTS_H_

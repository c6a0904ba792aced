// SharedParts: the step parts that the ranks of one job are making, or have made and still hold the
// results of. Engine-internal.
//
// Ranks whose gradients are equal want the same parts. The first one that asks for a part makes it,
// the others wait for it, and then their ids name its results. A part is compared as a whole: the
// work, and for each chunk that is read either its content, where ranks share it, or the digest of
// its bytes.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_SHARED_PARTS_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_SHARED_PARTS_H_

#include <cstdint>
#include <iterator>
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

// The content of a chunk that is read: a shared entry, by its own id, and its version; or a digest.
using ReadContent = std::pair<Digest, std::pair<ChunkId, Version>>;

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
  // In the waiting_chunks of its job and user.
  Count::Tokens chunks_of_job, chunks_of_user;
};

struct SharedPart {
  SessionId maker;
  uint32_t rank = 0;    // The maker's.
  uint64_t number = 0;  // The maker's number of the part; zero: it is made.
  uint64_t step = 0;    // The step of the maker, by its number of commits.
  std::vector<ChunkIndex> writes;
  // Once it is made: the own ids of `writes`, and the versions that are the results.
  std::vector<std::pair<ChunkId, Version>> results;
  std::vector<WaitingPart> waiting;

  uint64_t made_as = 0;  // Once it is made: the number of parts of the job that were before.

  bool is_done() const { return number == 0; }
};

class SharedParts {
 public:
  using Map = std::map<PartKey, SharedPart>;

  // nullptr: no session has begun it.
  SharedPart* Find(const PartKey& key);
  // The part that writes the entry, if any does; nullptr: none.
  const Map::value_type* WriterOf(ChunkIndex index) const;

  // Another session's part of the same elements, in this step; nullptr: none is among the first.
  const Map::value_type* SameElements(const PartKey& key, SessionId session, uint64_t step) const;

  // REQUIRES: no part with this key, and none that writes one of the entries, is there.
  void Begin(PartKey key, SharedPart part);
  // The maker's part with this number has ended. Returns the calls that wait for it; if it was not
  // `computed`, it is forgotten. So are the oldest that are made, where all read too much.
  struct Ended {
    std::vector<WaitingPart> waiting;
    SharedPart* part = nullptr;  // nullptr: it is forgotten.
  };
  Ended End(SessionId maker, uint64_t number, bool computed);
  // Forgets a part that is made. REQUIRES: it is.
  void Forget(const PartKey& key);
  // The result that entry `from` held is in entry `to` now, whose own id and version these are.
  // REQUIRES: no part has written `to`.
  void Move(ChunkIndex from, ChunkIndex to, ChunkId id, Version version);
  // Forgets the part that has written the entry, which holds no result any more.
  void ForgetWriter(ChunkIndex index);
  // Forgets the parts that are made and whose results are lost.
  template <typename Condition>
  void ForgetUnless(Condition are_there) {
    for (auto part = parts_.begin(); part != parts_.end();) {
      const auto next = std::next(part);
      if (part->second.is_done() && !are_there(part->second)) Forget(part);
      part = next;
    }
  }

  // Takes the calls of a session that ends, or whose deadline has come.
  std::vector<WaitingPart> TakeWaiting(SessionId session);
  std::vector<WaitingPart> TakeLate(Instant now);

 private:
  template <typename Condition>
  std::vector<WaitingPart> Take(Condition condition);

  void EraseWriters(Map::iterator part);

  void Forget(Map::iterator part);

  Map parts_;
  size_t reads_ = 0;  // All parts have as many.
  uint64_t have_been_made_ = 0;
  std::map<uint64_t, Map::iterator> made_;                          // By made_as.
  std::map<std::pair<SessionId, uint64_t>, Map::iterator> making_;  // By maker and its number.
  std::map<ChunkIndex, Map::iterator> writers_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_SHARED_PARTS_H_

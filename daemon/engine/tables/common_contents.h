// CommonContents: the contents that the sessions of one user have in common, in chunks of one size,
// and which digests they have offered. Engine-internal.
//
// A content has a slot in host memory of the user's own hidden job, and readers: entries of the
// chunk table, in the jobs of sessions, whose copy in host memory it is. It is written once, by the
// step part that makes it, and goes with its last reader. Sessions offer digests of what they will
// not write; a content is made when a second session offers the same.
//
// A digest only says what may be equal: bytes are compared before they become one. Digests are
// computed with a secret that no client knows, and each user has CommonContents of its own.
//
// Contents of one job's duplicates are CommonContents of that job alone, in slots of its own,
// without digests that mean anything.
//
// Ownership: it owns the slots of the contents, which point into the pool of the job that has the
// memory. A CommonContent& stays valid until it is removed.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_COMMON_CONTENTS_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_COMMON_CONTENTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include "base/count.h"
#include "base/digest.h"
#include "daemon/engine/interface/types.h"
#include "daemon/pool/slot_pool.h"

namespace memtide {

struct Job;
class CommonContents;

struct CommonContent {
  CommonContents* of = nullptr;
  Digest digest;
  Slot slot;           // In host memory.
  bool whole = false;  // The step part that makes it has ended.
  Count::Token claim;  // A slot that chunks of its own job need as well.
  Count readers;
};

class CommonContents {
 public:
  CommonContents() = default;
  CommonContents(const CommonContents&) = delete;
  CommonContents& operator=(const CommonContents&) = delete;

  // nullptr: there is none with this digest.
  CommonContent* Find(const Digest& digest);
  // REQUIRES: there is none with this digest.
  CommonContent& Add(const Digest& digest, Slot slot);
  // A content that is whole, with a digest that no other one here has.
  CommonContent& AddWhole(Slot slot);
  // Frees its slot. REQUIRES: it has no reader.
  void Remove(const CommonContent& content);
  // Whether there is no content.
  bool empty() const { return contents_.empty(); }
  uint32_t size() const { return static_cast<uint32_t>(contents_.size()); }
  std::set<SlotNumber> slots() const;
  // The readers of all contents.
  uint32_t readers() const;

  // The session offers a chunk with this digest, or not any more.
  void Offer(const Digest& digest, SessionId session, ChunkId chunk) {
    offered_[digest][session].insert(chunk);
  }
  // REQUIRES: it has offered that chunk.
  void Withdraw(const Digest& digest, SessionId session, ChunkId chunk);
  bool IsOfferedByOthers(const Digest& digest, SessionId session) const;
  using Offers = std::map<SessionId, std::set<ChunkId>>;
  // nullptr: no session has offered the digest.
  const Offers* OffersOf(const Digest& digest) const;
  // Whether no session has offered anything.
  bool is_unused() const { return offered_.empty(); }

  void CheckInvariants() const;

  Job* job = nullptr;           // Has the memory. A hidden job begins with the first content.
  std::set<SessionId> lent_to;  // Sessions that have its regions.

 private:
  std::map<Digest, std::unique_ptr<CommonContent>> contents_;
  std::map<Digest, Offers> offered_;
  uint64_t added_whole_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_COMMON_CONTENTS_H_

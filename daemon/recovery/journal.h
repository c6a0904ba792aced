// Journal: the newest record of each job and chunk, in shared memory that may outlive the process.
//
// The journal is a memfd with two halves. Append writes a record to the active half and then
// commits it with one store of a 64-bit word that holds the active half and its length: if the
// process is killed, each record is in the journal as a whole or not at all. When the active half
// has grown to several times its live content, that content is written to the other half, which
// becomes active, and the memory of the old half is freed. A crash of the machine loses the
// journal, as it loses the host memory that the journal describes.
//
// Each Append writes and frees a bounded part of the halves beside its own record, so that none
// takes long, however large the content is. Appends that free memory make one system call.
//
// Thread safety: thread-compatible.
#ifndef MEMTIDE_DAEMON_RECOVERY_JOURNAL_H_
#define MEMTIDE_DAEMON_RECOVERY_JOURNAL_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"
#include "daemon/engine/interface/record.h"
#include "daemon/io/owned_fd.h"

namespace memtide {

namespace journal {
class Entry;
}  // namespace journal

class Journal {
 public:
  // Capacity of one half.
  static constexpr Bytes kMostBytes = GiB(1);
  // The most live content: the rest of a half is for what is appended while the content is written
  // to the other one. About six times what the most chunks need, beside all step manifests
  // (Limits::manifest_bytes_per_node).
  static constexpr Bytes kMostLiveBytes = MiB(768);
  // A half smaller than this is not compacted.
  static constexpr Bytes kFewBytes = MiB(4);

  // An empty one, whose live content may have `most_live` bytes. RESOURCE_EXHAUSTED when there is
  // no memory for it.
  static absl::StatusOr<std::unique_ptr<Journal>> Create(Bytes most_live = kMostLiveBytes);
  // Opens the journal of an earlier process. FAILED_PRECONDITION if it has another version,
  // DATA_LOSS if it is damaged, which names the entry, or not a journal.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(OwnedFd fd);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  int fd() const { return fd_.get(); }

  // RESOURCE_EXHAUSTED, once, if the live content is too large. The journal is then empty,
  // as an outdated one would restore wrong content, until the live content fits again and has been
  // written.
  absl::Status Append(const Record& record);
  // The newest record of every job and chunk.
  Restore Contents() const;

 private:
  Journal(OwnedFd fd, char* memory) : fd_(std::move(fd)), memory_(memory) {}
  static absl::StatusOr<std::unique_ptr<Journal>> Map(OwnedFd fd);
  // The bytes that count: those of a half, from its beginning.
  struct Active {
    int half = 0;
    uint64_t end = 0;
  };
  static uint64_t ToWord(Active active);
  // Nothing: the word is damaged.
  static absl::optional<Active> FromWord(uint64_t word);
  // From here on these bytes count.
  void Commit(Active active);
  // A record and the bytes that it takes in a half.
  template <typename T>
  struct Kept {
    T record;
    uint64_t bytes = 0;
  };
  // The live content, while it is written to the half that is not active.
  struct Rewrite {
    uint64_t end = 0;  // Bytes written.
    // Everything before these is written, or is no longer live.
    JobId next_job;
    uint64_t next_chunk = 0;
    bool jobs_are_written = false;
  };

  absl::Status Read(bool has_sums);
  void Apply(const Record& record, const journal::Entry& entry);
  template <typename Key, typename T>
  void Keep(std::map<Key, Kept<T>>* records, Key key, const T& record, uint64_t bytes);
  template <typename Key, typename T>
  void Drop(std::map<Key, Kept<T>>* records, Key key);
  absl::Status BecomeFull();
  void BeginRewrite();
  absl::Status RewriteNow();
  void AbandonRewrite();
  // Writes some of the content that is left, and makes the other half active if none is left.
  // False: there is no room.
  bool ContinueRewrite(uint64_t most_bytes);
  bool WriteSome(uint64_t* bytes);
  // Frees some memory of what is not needed. False: there is none.
  bool FreeSome(uint64_t most_bytes);
  bool Write(int half, uint64_t* end, const journal::Entry& entry);

  const OwnedFd fd_;
  char* const memory_;
  Active active_;  // As the header says.
  std::map<JobId, Kept<JobRecord>> jobs_;
  std::map<uint32_t, Kept<ChunkRecord>> chunks_;  // By place: the low 32 bits of the id.
  uint64_t live_bytes_ = 0;                       // The sum over both.
  Bytes most_live_ = kMostLiveBytes;
  Bytes worth_writing_anew_ = kFewBytes;
  absl::optional<Rewrite> rewrite_;
  // A half that is not needed may have memory below this offset.
  std::array<uint64_t, 2> to_free_{};
  bool full_ = false;  // The active half is empty, and not the content.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_RECOVERY_JOURNAL_H_

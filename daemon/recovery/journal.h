// Journal: the newest record of each job and chunk, in shared memory that may outlive the process.
//
// The journal is a memfd with two halves. Append writes a record to the active half and then
// commits it with one store of a 64-bit word that holds the active half and its length: if the
// process is killed, each record is in the journal as a whole or not at all. The word and each
// record have a check, so that a bit that flipped in memory is found, and not believed. When the active half
// has grown to several times its live content, that content is written to the other half, which
// becomes active, and the memory of the old half is freed. A crash of the machine loses the
// journal, as it loses the host memory that the journal describes.
//
// Append makes no system call, except one when the halves change.
//
// Thread safety: thread-compatible.
#ifndef MEMTIDE_DAEMON_RECOVERY_JOURNAL_H_
#define MEMTIDE_DAEMON_RECOVERY_JOURNAL_H_

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

class Journal {
 public:
  // Capacity of one half: about ten times what the most chunks and the step manifests of 1,000
  // jobs need.
  static constexpr Bytes kMostBytes = GiB(1);
  // A half smaller than this is not compacted.
  static constexpr Bytes kFewBytes = MiB(4);

  // An empty one. RESOURCE_EXHAUSTED when there is no memory for it.
  static absl::StatusOr<std::unique_ptr<Journal>> Create();
  // Opens the journal of an earlier process. FAILED_PRECONDITION if it has another version,
  // DATA_LOSS if it is damaged, which names the entry, or not a journal.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(OwnedFd fd);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  int fd() const { return fd_.get(); }

  // RESOURCE_EXHAUSTED if the live content exceeds kMostBytes. The journal is then empty and stays
  // so: an outdated journal would restore wrong content.
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
  absl::Status Read(Active active, bool has_sums);
  void Apply(const Record& record);
  // Writes everything to the half that is not `old`.
  absl::Status Compact(int old);
  bool Write(Active* active, const Record& record);

  const OwnedFd fd_;
  char* const memory_;
  std::map<JobId, JobRecord> jobs_;
  std::map<uint32_t, ChunkRecord> chunks_;  // By place: the low 32 bits of the id.
  Bytes worth_writing_anew_ = kFewBytes;
  bool full_ = false;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_RECOVERY_JOURNAL_H_

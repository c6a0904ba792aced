// Journal: the newest record of each job and chunk, in shared memory that may outlive the process.
//
// A memfd with two halves. Records are appended to one of them, and count from the one store of a
// 64-bit word on that says which half counts and how much of it: so whenever the process is killed,
// each record counts as a whole or not at all. When a half has grown to several times what is still
// true, that is written to the other one, which counts from then on, and the memory of the first is
// given back. A machine that crashes loses it, as it does the host memory that it speaks of.
//
// Thread-compatible. Costs no system call, but for one each time the halves change.
#ifndef MEMTIDE_DAEMON_RESTART_JOURNAL_H_
#define MEMTIDE_DAEMON_RESTART_JOURNAL_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "daemon/engine/effects.h"
#include "daemon/engine/events.h"
#include "daemon/engine/record.h"
#include "daemon/io/owned_fd.h"

namespace memtide {

class Journal {
 public:
  // Of one half: some ten times what the most chunks need, and the notes of 1,000 jobs.
  static constexpr Bytes kMostBytes = GiB(1);
  // Below this, a half is not worth being written anew.
  static constexpr Bytes kFewBytes = MiB(4);

  // An empty one. RESOURCE_EXHAUSTED when there is no memory for it.
  static absl::StatusOr<std::unique_ptr<Journal>> Create();
  // Goes on with what another process left. FAILED_PRECONDITION: it is of another version;
  // DATA_LOSS: it is damaged, or no journal.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(OwnedFd fd);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  int fd() const { return fd_.get(); }

  // RESOURCE_EXHAUSTED when what is true takes more than kMostBytes: the journal then is, and
  // stays, empty, so that nothing old is ever taken for true.
  absl::Status Append(const Record& record);
  // All that is true.
  Restore Contents() const;

 private:
  Journal(OwnedFd fd, char* memory) : fd_(std::move(fd)), memory_(memory) {}
  static absl::StatusOr<std::unique_ptr<Journal>> Map(OwnedFd fd);
  absl::Status Read();
  void Apply(const Record& record);
  absl::Status Compact();
  bool Write(int half, uint64_t* end, const Record& record);

  const OwnedFd fd_;
  char* const memory_;
  std::map<JobId, JobRecord> jobs_;
  std::map<uint32_t, ChunkRecord> chunks_;  // By place: the low 32 bits of the id.
  Bytes worth_writing_anew_ = kFewBytes;
  bool full_ = false;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_RESTART_JOURNAL_H_

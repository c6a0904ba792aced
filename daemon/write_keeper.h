// WriteKeeper: what was written to the SSD directories, kept in files there from daemon to daemon.
//
// LoadDrives() reads them for the engine. A WriteKeeper then asks the engine once a minute, and at
// its end, and writes them. A daemon that is killed leaves the counts of a minute ago: budgets do
// not depend on them (SsdDrive::was_used).
//
// Thread safety: a WriteKeeper has one thread of its own, which calls `inspect`.
#ifndef MEMTIDE_DAEMON_WRITE_KEEPER_H_
#define MEMTIDE_DAEMON_WRITE_KEEPER_H_

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/mutex.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/types.h"

namespace memtide {

// The drives with what was written to them, by directory, which exist. Counts that cannot be read
// begin anew, which is logged. `per_day`: by directory, or empty.
std::vector<SsdDrive> LoadDrives(const std::vector<std::string>& directories,
                                 const std::vector<Bytes>& per_day);

class WriteKeeper {
 public:
  // The reply to an InspectCall with past_writes.
  using Inspect = std::function<absl::StatusOr<InspectReply>()>;

  // `drives`: what LoadDrives() returned. Writes the files at once, so that the next daemon knows
  // of this one.
  WriteKeeper(std::vector<std::string> directories, const std::vector<SsdDrive>& drives,
              Inspect inspect);
  ~WriteKeeper();
  WriteKeeper(const WriteKeeper&) = delete;
  WriteKeeper& operator=(const WriteKeeper&) = delete;

 private:
  void Run();
  void Keep();
  void Save(size_t directory, Bytes written, const std::vector<PastWrites>& past);

  const std::vector<std::string> directories_;
  const Inspect inspect_;
  std::vector<bool> failed_;  // By directory: the last write of its file.
  Mutex mutex_;
  CondVar stopping_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_WRITE_KEEPER_H_

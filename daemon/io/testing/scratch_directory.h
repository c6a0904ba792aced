// ScratchDirectory: an empty directory of mode 0700 for one test, removed with its files.
#ifndef MEMTIDE_DAEMON_IO_TESTING_SCRATCH_DIRECTORY_H_
#define MEMTIDE_DAEMON_IO_TESTING_SCRATCH_DIRECTORY_H_

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "base/check.h"

namespace memtide {

class ScratchDirectory {
 public:
  // Inside `parent`; empty: where the test runner says, which is on a disk rather than in memory.
  explicit ScratchDirectory(std::string parent = "") {
    if (parent.empty()) {
      const char* const given = getenv("TEST_TMPDIR");
      parent = given != nullptr ? given : "/tmp";
    }
    path_ = parent + "/memtide-XXXXXX";
    MEMTIDE_CHECK(mkdtemp(&path_[0]) != nullptr) << path_;
  }
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_TESTING_SCRATCH_DIRECTORY_H_

// ScratchDirectory: an empty directory of mode 0700 for one test, removed with its files.
#ifndef MEMTIDE_DAEMON_IO_TESTING_SCRATCH_DIRECTORY_H_
#define MEMTIDE_DAEMON_IO_TESTING_SCRATCH_DIRECTORY_H_

#include <string>

namespace memtide {

class ScratchDirectory {
 public:
  // Inside `parent`; empty: where the test runner says, which is on a disk rather than in memory.
  explicit ScratchDirectory(std::string parent = "");
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_TESTING_SCRATCH_DIRECTORY_H_

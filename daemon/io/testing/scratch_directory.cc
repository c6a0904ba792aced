#include "daemon/io/testing/scratch_directory.h"

#include <stdlib.h>

#include <filesystem>

#include "base/check.h"

namespace memtide {

ScratchDirectory::ScratchDirectory(std::string parent) {
  if (parent.empty()) {
    const char* const given = getenv("TEST_TMPDIR");
    parent = given != nullptr ? given : "/tmp";
  }
  path_ = parent + "/memtide-XXXXXX";
  MEMTIDE_CHECK(mkdtemp(&path_[0]) != nullptr) << path_;
}

ScratchDirectory::~ScratchDirectory() { std::filesystem::remove_all(path_); }

}  // namespace memtide

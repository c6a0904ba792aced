#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace memtide::internal {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ":" << line << ": CHECK failed: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "%s\n", stream_.str().c_str());
  // abort() does not flush streams.
  std::fflush(stderr);
  std::abort();
}

}  // namespace memtide::internal

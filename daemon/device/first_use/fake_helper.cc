// fake_helper ROLE ORDINAL: the processes that ask a GPU on the fake CUDA, for first_use_test.
#include <string>

#include "absl/strings/numbers.h"
#include "base/check.h"
#include "daemon/device/first_use/first_use.h"
#include "daemon/device/first_use/helper.h"

int main(int argc, char** argv) {
  int ordinal = 0;
  MEMTIDE_CHECK(argc == 3 && absl::SimpleAtoi(argv[2], &ordinal));
  const bool asks = std::string(argv[1]) == memtide::kAskerFlag;
  return asks ? memtide::RunGpuAsker(ordinal) : memtide::RunGpuHelper(ordinal);
}

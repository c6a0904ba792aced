// fake_helper --gpu-helper ORDINAL: the helper process on the fake CUDA, for first_use_test.
#include <string>

#include "absl/strings/numbers.h"
#include "base/check.h"
#include "daemon/device/first_use/helper.h"

int main(int argc, char** argv) {
  int ordinal = 0;
  MEMTIDE_CHECK(argc == 3 && std::string(argv[1]) == "--gpu-helper" &&
                absl::SimpleAtoi(argv[2], &ordinal));
  return memtide::RunGpuHelper(ordinal);
}

#include "tests/sim/run_seeds.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace memtide::sim {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

char g_how_to_reproduce[1024];
void OnAbort(int) {
  const ssize_t written = write(STDERR_FILENO, g_how_to_reproduce, std::strlen(g_how_to_reproduce));
  _exit(written > 0 ? 134 : 135);
}

}  // namespace

void AnnounceSeed(const std::string& how_to_reproduce) {
  std::signal(SIGABRT, OnAbort);
  std::strncpy(g_how_to_reproduce, (how_to_reproduce + "\n").c_str(),
               sizeof(g_how_to_reproduce) - 1);
}

bool RunSeeds(uint64_t seeds, const std::function<void(uint64_t seed, std::ostream* echo)>& run) {
  const uint64_t first = FromEnvironment("MEMTIDE_SIM_FIRST", 1);
  const uint64_t end = first + FromEnvironment("MEMTIDE_SIM_SEEDS", seeds);
  std::ostream* const echo = std::getenv("MEMTIDE_SIM_ECHO") == nullptr ? nullptr : &std::cout;
  for (uint64_t seed = first; seed < end; ++seed) {
    const std::string name = absl::StrCat("seed ", seed);
    AnnounceSeed(name);
    SCOPED_TRACE(name);
    run(seed, echo);
    if (testing::Test::HasFailure()) return false;
  }
  std::cout << end - first << " seeds\n";
  return first == 1 && end > seeds;
}

}  // namespace memtide::sim

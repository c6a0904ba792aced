// Tests from inside a fuzz target, at exit, that fuzz_driver.cc delivers the inputs that it
// promises.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

namespace {

struct Seen {
  bool corpus_file = false;
  bool empty = false;
  std::set<std::string> distinct;
};

Seen& Inputs() {
  static Seen seen;
  return seen;
}

#ifndef MEMTIDE_LIBFUZZER
// libFuzzer delivers other inputs, and does not end with exit().
void CheckAtExit() {
  const Seen& seen = Inputs();
  if (seen.corpus_file && seen.empty && seen.distinct.size() > 1000) return;
  std::fprintf(stderr, "fuzz_driver_test: corpus file %d, empty %d, %zu distinct inputs\n",
               seen.corpus_file, seen.empty, seen.distinct.size());
  std::_Exit(1);
}
const int kRegistered = std::atexit(CheckAtExit);
#endif

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  Seen& seen = Inputs();
  seen.corpus_file |= input == "memtide\n";
  seen.empty |= input.empty();
  if (seen.distinct.size() < 5000) seen.distinct.insert(input);
  return 0;
}

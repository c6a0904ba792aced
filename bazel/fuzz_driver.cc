// main() for fuzz targets built without libFuzzer: a short, repeatable run.
//
//   driver [CORPUS_FILE...]
//
// Each corpus file is delivered as it is, then the empty input, then a fixed number of inputs that
// are random bytes, mutations of corpus files, and what the target's own mutator
// (LLVMFuzzerCustomMutator), if it has one, makes of nothing and of its last results. The number,
// not the clock, ends the run, so a failure is always found again; MEMTIDE_FUZZ_RUNS and
// MEMTIDE_FUZZ_SEED override it by hand. On a fatal signal the input's number and the seed are
// printed: enough to repeat it.

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" __attribute__((weak)) std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data,
                                                                     std::size_t size,
                                                                     std::size_t most,
                                                                     unsigned seed);

namespace {

using Input = std::vector<std::uint8_t>;
using Random = std::mt19937_64;

constexpr std::uint64_t kDefaultRuns = 20000;
constexpr std::uint64_t kDefaultSeed = 20240607;
constexpr std::size_t kMaxRandomBytes = 512;
constexpr std::size_t kMaxInputBytes = 1 << 16;
// How many results of the target's own mutator are kept.
constexpr std::size_t kResults = 64;

std::uint64_t g_current_run = 0;
std::uint64_t g_seed = kDefaultSeed;

std::uint64_t FromEnvironment(const char* name, std::uint64_t fallback) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : fallback;
}

// The process is about to end, so a message that is sometimes garbled is better than none.
void OnFatalSignal(int signal) {
  char message[128];
  const int n = std::snprintf(
      message, sizeof(message), "\nfuzz_driver: signal %d in run %llu of seed %llu\n", signal,
      static_cast<unsigned long long>(g_current_run), static_cast<unsigned long long>(g_seed));
  if (n > 0 && write(STDERR_FILENO, message, static_cast<std::size_t>(n)) < 0) _exit(1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

std::size_t Below(Random& random, std::size_t limit) {
  return limit == 0 ? 0 : static_cast<std::size_t>(random() % limit);
}

// Lengths lean to the short end: most parsers fail on their first few bytes.
Input RandomInput(Random& random) {
  Input input(Below(random, Below(random, kMaxRandomBytes) + 1));
  for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(random());
  return input;
}

void MutateOnce(Random& random, Input& input) {
  static constexpr std::uint8_t kEdges[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
  const std::size_t at = Below(random, input.size());
  const auto position = input.begin() + static_cast<Input::difference_type>(at);
  switch (random() % 6) {
    case 0:
      if (!input.empty()) *position ^= static_cast<std::uint8_t>(1u << (random() % 8));
      break;
    case 1:
      if (!input.empty()) *position = kEdges[Below(random, sizeof(kEdges))];
      break;
    case 2:
      input.insert(position, static_cast<std::uint8_t>(random()));
      break;
    case 3:
      if (!input.empty()) input.erase(position);
      break;
    case 4:
      input.resize(at);
      break;
    default:  // Repeats the tail from `at`.
      if (input.size() < kMaxInputBytes / 2) {
        const Input tail(position, input.end());
        input.insert(input.end(), tail.begin(), tail.end());
      }
  }
}

// An input that the target's mutator makes of an earlier one of its own, a corpus file or nothing.
Input CustomInput(Random& random, const std::vector<Input>& corpus) {
  static std::vector<Input> results(kResults);
  Input& result = results[Below(random, kResults)];
  if (random() % 8 == 0) {
    result = corpus.empty() || random() % 2 == 0 ? Input() : corpus[Below(random, corpus.size())];
  }
  const std::size_t size = result.size();
  result.resize(kMaxInputBytes);
  result.resize(LLVMFuzzerCustomMutator(result.data(), size, kMaxInputBytes,
                                        static_cast<unsigned>(random())));
  return result;
}

Input NextInput(Random& random, const std::vector<Input>& corpus) {
  if (LLVMFuzzerCustomMutator != nullptr && random() % 8 != 0) return CustomInput(random, corpus);
  if (corpus.empty() || random() % 4 == 0) return RandomInput(random);
  Input input = corpus[Below(random, corpus.size())];
  const std::size_t mutations = 1 + Below(random, 8);
  for (std::size_t i = 0; i < mutations; ++i) MutateOnce(random, input);
  return input;
}

void Deliver(const Input& input) {
  // An exact copy on the heap lets AddressSanitizer see a read one past the end.
  const Input exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace

// As libFuzzer defines it, for mutators that change bytes at times.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most) {
  static Random random(g_seed);
  Input input(data, data + size);
  MutateOnce(random, input);
  if (input.size() > most) input.resize(most);
  std::copy(input.begin(), input.end(), data);
  return input.size();
}

int main(int argc, char** argv) {
  std::vector<Input> corpus;
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "fuzz_driver: cannot read %s\n", argv[i]);
      return 2;
    }
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    // A sanitizer's own handler prints more than this one.
    const auto previous = std::signal(signal, OnFatalSignal);
    if (previous != SIG_DFL) std::signal(signal, previous);
  }
  g_seed = FromEnvironment("MEMTIDE_FUZZ_SEED", kDefaultSeed);
  const std::uint64_t runs = FromEnvironment("MEMTIDE_FUZZ_RUNS", kDefaultRuns);

  for (const Input& input : corpus) Deliver(input);
  Deliver({});
  Random random(g_seed);
  for (g_current_run = 1; g_current_run <= runs; ++g_current_run) {
    Deliver(NextInput(random, corpus));
  }
  std::printf("fuzz_driver: %llu runs of seed %llu, %zu corpus files\n",
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(g_seed),
              corpus.size());
  return 0;
}

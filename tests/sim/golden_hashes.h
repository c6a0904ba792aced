// GoldenHashes: compares the traces of a family's seeds with golden_hashes.txt.
#ifndef MEMTIDE_TESTS_SIM_GOLDEN_HASHES_H_
#define MEMTIDE_TESTS_SIM_GOLDEN_HASHES_H_

#include <cstdint>
#include <map>
#include <string>

namespace memtide::sim {

// Thread-compatible.
class GoldenHashes {
 public:
  // Fails the test if the file has not all rows of the family's first `seeds` seeds.
  GoldenHashes(const std::string& family, uint64_t seeds);
  // Fails the test if a row was other than the file's.
  ~GoldenHashes();
  GoldenHashes(const GoldenHashes&) = delete;
  GoldenHashes& operator=(const GoldenHashes&) = delete;

  bool Knows(uint64_t seed) const { return seed <= seeds_; }
  // The seeds must come in their order. A row of which not all seeds come is not compared.
  // `trace_hash`: 0 for a seed that is not run.
  void Add(uint64_t seed, uint64_t trace_hash);

 private:
  const std::string family_;
  const uint64_t seeds_;
  std::map<uint64_t, uint64_t> rows_;  // By their first seeds.
  uint64_t hash_ = 0, next_ = 0;       // The row that has begun, to next_.
  uint64_t different_ = 0, first_different_ = 0;
};

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_GOLDEN_HASHES_H_

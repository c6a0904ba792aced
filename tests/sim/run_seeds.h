// RunSeeds: the loop of the tests that run many seeds. MEMTIDE_SIM_FIRST says from which seed on,
// MEMTIDE_SIM_SEEDS how many; with MEMTIDE_SIM_ECHO their traces are printed.
#ifndef MEMTIDE_TESTS_SIM_RUN_SEEDS_H_
#define MEMTIDE_TESTS_SIM_RUN_SEEDS_H_

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

namespace memtide::sim {

// Runs `run` with each of the first `seeds` seeds, or those of the environment, and with where its
// trace goes; null: nowhere. Stops at the first that fails. Returns whether at least the first
// `seeds` seeds have run: fewer prove nothing about what they reach.
bool RunSeeds(uint64_t seeds, const std::function<void(uint64_t seed, std::ostream* echo)>& run);

// The engine's own checks end the process; this is printed then. RunSeeds announces the number of
// each seed.
void AnnounceSeed(const std::string& how_to_reproduce);

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_RUN_SEEDS_H_

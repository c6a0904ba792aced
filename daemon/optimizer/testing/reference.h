// The optimizers' formulas once more, one element at a time in double precision: what the kernels
// are compared with. Only for tests.
//
// Plain values and pure functions. A reference also says how far fp32 may be from it: each of its
// slacks is an absolute distance, made of what the headers of the algorithms promise.
#ifndef MEMTIDE_DAEMON_OPTIMIZER_TESTING_REFERENCE_H_
#define MEMTIDE_DAEMON_OPTIMIZER_TESTING_REFERENCE_H_

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "daemon/optimizer/spans.h"

namespace memtide::optimizer {

inline constexpr size_t kMostStates = 3;

// One element before a step.
struct Element {
  double gradient = 0, parameter = 0;
  double state[kMostStates] = {};
};

// And after it.
struct Exact {
  double parameter = 0, state[kMostStates] = {};
  double parameter_slack = 0, state_slack[kMostStates] = {};
};

// An algorithm with one set of options, as a kernel and as a reference.
struct Algorithm {
  std::string name;
  size_t states = 0;
  // Whether state i is a sum of squares.
  bool is_square[kMostStates] = {};
  std::function<void(uint64_t step, const StepSpans& spans, const std::vector<Input>& old,
                     const std::vector<Output>& fresh)>
      run;
  std::function<Exact(uint64_t step, const Element& element)> exact;
};

// For GoogleTest.
inline void PrintTo(const Algorithm& algorithm, std::ostream* out) { *out << algorithm.name; }

// Every algorithm with many sets of options.
std::vector<Algorithm> AllAlgorithms();

// Adam's bias corrections of a step, by another way than the power of a rounded base.
double ExactCorrection(double beta, uint64_t step);

// The number nearest to `value` (ties to even) that the format can hold, or infinity, by arithmetic
// on doubles. And the number that is stored as these bits.
double RoundTo(Format format, double value);
double ValueOf(Format format, uint32_t bits);

}  // namespace memtide::optimizer

#endif  // MEMTIDE_DAEMON_OPTIMIZER_TESTING_REFERENCE_H_

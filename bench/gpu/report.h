// Prints a probe's answers as lines of JSON on standard output.
#ifndef MEMTIDE_BENCH_GPU_REPORT_H_
#define MEMTIDE_BENCH_GPU_REPORT_H_

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace memtide::bench {

// Prints the answer to a question.
void Answer(absl::string_view question, absl::string_view answer);
// Prints the answer to a question to which it should be yes.
void YesOrNo(absl::string_view question, bool yes);
// Prints a figure without a goal. `note` says what changes from run to run, as `name` must not: the
// figure's prediction is found by it.
void Figure(absl::string_view name, double value, absl::string_view unit,
            absl::string_view note = "");
// Prints a figure that should be at least `goal`.
void Ratio(absl::string_view name, double value, double goal);

// The microseconds since then.
inline double MicrosecondsSince(Instant start) {
  return std::chrono::duration<double, std::micro>(Now() - start).count();
}

// Prints the median and the largest of some times, which it sorts, as two figures.
void MedianAndWorst(const std::string& name, std::vector<double>* microseconds);

// Calls `work` once and then `rounds` times, and returns the median of these in microseconds.
template <typename Work>
double MedianMicroseconds(int rounds, Work work) {
  work();
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const Instant start = Now();
    work();
    times.push_back(std::chrono::duration<double, std::micro>(Now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace memtide::bench

#endif  // MEMTIDE_BENCH_GPU_REPORT_H_

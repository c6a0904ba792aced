// Harness: rounds of paired measurements, CPU times, and pinned threads.
//
// A benchmark compares a product with a limit in the same round, because the machine drifts: only
// the ratio of two measurements made one after the other means something. Rounds runs a warm-up and
// then rounds until enough of them were quiet (other processes used little CPU time), and prints
// the samples as one line of JSON for each figure. Only bench/figures.py has the samples' units and
// the goals, and judges them. Not thread-safe: one Rounds in main's thread.
#ifndef MEMTIDE_BENCH_HARNESS_H_
#define MEMTIDE_BENCH_HARNESS_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"

namespace memtide {

// The threads that a process has now. REQUIRES: the process exists.
std::vector<pid_t> ThreadsOf(pid_t process);
// CPU time of a process and all its threads so far. REQUIRES: the process exists, and this one may
// read its clock.
Duration CpuTime(pid_t process);

double Seconds(Duration duration);
double Microseconds(Duration duration);
// In 10^9 bytes a second.
double GigabytesPerSecond(Bytes bytes, Duration duration);

// REQUIRES: not empty.
double Median(std::vector<double> values);
// Runs `work`, and returns how long it took.
Duration TimeOf(const std::function<void()>& work);

// Pins the calling thread, or every thread that `process` has now, to one CPU. CHECK-fails if the
// CPU does not exist: a bandwidth of threads that share a CPU by accident is worth nothing.
void PinThisThread(int cpu);
void PinProcess(pid_t process, int cpu);
// Pins the threads of this process with that name.
void PinThreadsNamed(const std::string& name, int cpu);
// Gives every thread of `process` the same real-time priority if that is permitted (root), so that
// other processes do not add to the time of a copy. The threads take turns, as without it. A daemon
// sets and drops this priority itself.
void PreferProcess(pid_t process);

// Ends the program with the message if the status is not OK, as nothing can be measured then.
void OrDie(const absl::Status& status);
template <typename T>
T OrDie(absl::StatusOr<T> value) {
  OrDie(value.status());
  return std::move(*value);
}

struct RoundsOptions {
  int quiet_rounds = 5;  // Rounds end after this number of quiet ones.
  int most_rounds = 12;  // Rounds end after this number on a machine that is never quiet.
  double quiet = 0.15;   // A round is quiet if other processes used fewer CPUs than this.
  pid_t daemon = 0;      // The CPU time of this process is not that of others. Zero: no daemon.
  // No further round begins after this.
  Duration at_most = std::chrono::seconds(60);
};

class Rounds {
 public:
  explicit Rounds(const RoundsOptions& options);

  // Begins the next round, or returns false when there are enough. The first is a warm-up, whose
  // samples are dropped.
  bool Next();
  // Whether to measure the product first. Alternates, so that the state that the first side leaves
  // (caches, a busy disk) favours neither.
  bool product_first() const { return round_ % 2 == 0; }
  // Measures both sides, in the order of the round, and adds the pair.
  void Compare(const std::string& figure, const std::function<double()>& limit,
               const std::function<double()>& product);
  void Add(const std::string& figure, double limit, double product);
  // Adds a sample of a figure that has no limit.
  void Add(const std::string& figure, double product);

  // Writes the samples to standard output.
  void Print() const;

 private:
  struct Sample {
    double limit = 0, product = 0;  // `limit` is zero in figures without one.
    int round = 0;
  };
  struct Usage {
    Instant when;
    Duration all{0}, ours{0};  // CPU time of all processes, and of this one and the daemon.
  };

  Usage Measure() const;
  void EndRound();

  RoundsOptions options_;
  const Instant began_;
  Usage round_began_;
  int round_ = -1;  // Round 0 is the warm-up.
  int quiet_rounds_ = 0;
  std::vector<double> others_;  // The number of CPUs that other processes used, by round.
  std::map<std::string, std::vector<Sample>> figures_;
};

}  // namespace memtide

#endif  // MEMTIDE_BENCH_HARNESS_H_

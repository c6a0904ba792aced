// Harness: rounds of paired measurements, and what a measurement needs of the machine.
//
// A benchmark compares a product with a limit in the same round, because the machine drifts: only
// the ratio of two measurements made one after the other means something. Rounds runs a warm-up and
// then rounds until enough of them were quiet (other processes used little), and prints the samples
// as one line of JSON for each figure. What a sample's unit is, what the goal is and whether it was
// met is said in bench/figures.py and nowhere else. Not thread-safe: one Rounds in main's thread.
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

// The threads that a process has now. The process must be there.
std::vector<pid_t> ThreadsOf(pid_t process);
// CPU time of a process and all its threads so far. The process must be there and ours to ask.
Duration CpuTime(pid_t process);

double Seconds(Duration duration);
double Microseconds(Duration duration);
// In 10^9 bytes a second.
double GigabytesPerSecond(Bytes bytes, Duration duration);

// REQUIRES: not empty.
double Median(std::vector<double> values);
// How long `work` takes.
Duration TimeOf(const std::function<void()>& work);

// Pins the calling thread, or every thread that `process` has now, to one CPU. CHECK-fails where
// the CPU is not there: a bandwidth of threads that share a CPU by accident is worth nothing.
void PinThisThread(int cpu);
void PinProcess(pid_t process, int cpu);
// Pins the threads of this process with that name.
void PinThreadsNamed(const std::string& name, int cpu);
// Gives every thread of `process` real-time priority, where we may (root): what a call takes is
// then its own, also on a busy machine. All at the same one, in turns, as without it.
void PreferProcess(pid_t process);

// Ends the program with the message when status is not OK: nothing can be measured then.
void OrDie(const absl::Status& status);
template <typename T>
T OrDie(absl::StatusOr<T> value) {
  OrDie(value.status());
  return std::move(*value);
}

struct RoundsOptions {
  int quiet_rounds = 5;  // Enough of these, and the figure is taken.
  int most_rounds = 12;  // On a machine that is never quiet.
  double quiet = 0.15;   // Of one CPU, used by others.
  pid_t daemon = 0;      // Whose CPU time is not that of others; zero: none.
  // No further round begins after this.
  Duration at_most = std::chrono::seconds(60);
};

class Rounds {
 public:
  explicit Rounds(const RoundsOptions& options);

  // Begins the next round, or returns false when there are enough. The first is a warm-up, whose
  // samples are dropped.
  bool Next();
  // Which side to measure first: alternates, so that what the first leaves behind (a cache, a busy
  // disk) favours neither.
  bool product_first() const { return round_ % 2 == 0; }
  // Measures both sides, in the order of the round, and adds the pair.
  void Compare(const std::string& figure, const std::function<double()>& limit,
               const std::function<double()>& product);
  void Add(const std::string& figure, double limit, double product);
  // For a figure that is compared with its goal directly.
  void Add(const std::string& figure, double product);

  // Writes the samples to standard output.
  void Print() const;

 private:
  struct Sample {
    double limit = 0, product = 0;  // No limit: zero.
    int round = 0;
  };
  struct Usage {
    Instant when;
    Duration all{0}, ours{0};  // CPU time of everybody, and of this process and the daemon.
  };

  Usage Measure() const;
  void EndRound();

  const RoundsOptions options_;
  const Instant began_;
  Usage round_began_;
  int round_ = -1;  // Zero: the warm-up.
  int quiet_rounds_ = 0;
  std::vector<double> others_;  // By round: CPUs that others used.
  std::map<std::string, std::vector<Sample>> figures_;
};

}  // namespace memtide

#endif  // MEMTIDE_BENCH_HARNESS_H_

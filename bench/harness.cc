#include "bench/harness.h"

#include <dirent.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"

ABSL_FLAG(int, most_rounds, 0, "end after this many rounds; 0: the benchmark's own number");

namespace memtide {
namespace {

Duration TimeOn(clockid_t clock) {
  timespec time;
  MEMTIDE_CHECK(clock_gettime(clock, &time) == 0) << "clock " << clock;
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// The time since boot that all CPUs were not idle, from the first line of /proc/stat.
Duration BusyTimeOfMachine() {
  std::ifstream file("/proc/stat");
  std::string label;
  int64_t user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  file >> label >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
  // `steal` is the time that the host of a virtual machine took from it, which is a load, too.
  const int64_t ticks = user + nice + system + irq + softirq + steal;
  return std::chrono::nanoseconds(std::chrono::seconds(ticks)) / sysconf(_SC_CLK_TCK);
}

void Allow(pid_t thread, const cpu_set_t& cpus) {
  // ESRCH: the thread has just ended.
  MEMTIDE_CHECK(sched_setaffinity(thread, sizeof(cpus), &cpus) == 0 || errno == ESRCH)
      << "thread " << thread << ": errno " << errno;
}

cpu_set_t Only(int cpu) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(cpu, &cpus);
  return cpus;
}

}  // namespace

std::vector<pid_t> ThreadsOf(pid_t process) {
  std::vector<pid_t> threads;
  DIR* const directory = opendir(absl::StrCat("/proc/", process, "/task").c_str());
  MEMTIDE_CHECK(directory != nullptr) << "no process " << process;
  while (const dirent* entry = readdir(directory)) {
    pid_t thread = 0;
    if (absl::SimpleAtoi(entry->d_name, &thread)) threads.push_back(thread);
  }
  closedir(directory);
  return threads;
}

Duration CpuTime(pid_t process) {
  clockid_t clock;
  MEMTIDE_CHECK(clock_getcpuclockid(process, &clock) == 0) << "no process " << process;
  return TimeOn(clock);
}

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }
double Microseconds(Duration duration) { return Seconds(duration) * 1e6; }
double GigabytesPerSecond(Bytes bytes, Duration duration) {
  return bytes.count() / 1e9 / Seconds(duration);
}

double Median(std::vector<double> values) {
  MEMTIDE_CHECK(!values.empty());
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

Duration TimeOf(const std::function<void()>& work) {
  const Instant begin = Now();
  work();
  return Now() - begin;
}

void PinThisThread(int cpu) { Allow(0, Only(cpu)); }

void PreferProcess(pid_t process) {
  for (const pid_t thread : ThreadsOf(process)) {
    sched_param lowest = {};
    // Round robin, so that the processes of a benchmark that share a CPU still take turns.
    lowest.sched_priority = sched_get_priority_min(SCHED_RR);
    MEMTIDE_CHECK(sched_setscheduler(thread, SCHED_RR, &lowest) == 0 || errno == ESRCH ||
                  errno == EPERM)
        << strerror(errno);
  }
}

void PinProcess(pid_t process, int cpu) {
  for (const pid_t thread : ThreadsOf(process)) Allow(thread, Only(cpu));
}

void PinThreadsNamed(const std::string& name, int cpu) {
  bool found = false;
  for (const pid_t thread : ThreadsOf(getpid())) {
    std::ifstream file(absl::StrCat("/proc/self/task/", thread, "/comm"));
    std::string comm;
    std::getline(file, comm);
    if (comm != name) continue;
    Allow(thread, Only(cpu));
    found = true;
  }
  MEMTIDE_CHECK(found) << "no thread is called " << name;
}

void OrDie(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::exit(EXIT_FAILURE);
}

Rounds::Rounds(const RoundsOptions& options) : options_(options), began_(Now()) {
  if (const int most = absl::GetFlag(FLAGS_most_rounds); most > 0) {
    options_.most_rounds = std::min(options_.most_rounds, most);
  }
}

Rounds::Usage Rounds::Measure() const {
  Usage usage{Now(), BusyTimeOfMachine(), CpuTime(getpid())};
  if (options_.daemon != 0) usage.ours += CpuTime(options_.daemon);
  return usage;
}

void Rounds::EndRound() {
  const Usage now = Measure();
  const double wall = Seconds(now.when - round_began_.when);
  // CPU time beyond that of this process and the daemon belongs to other programs, and makes a
  // round unfit.
  const Duration others = (now.all - round_began_.all) - (now.ours - round_began_.ours);
  others_.push_back(std::max(0.0, Seconds(others) / wall));
  if (round_ > 0 && others_.back() < options_.quiet) ++quiet_rounds_;
}

bool Rounds::Next() {
  if (round_ >= 0) EndRound();
  if (quiet_rounds_ == options_.quiet_rounds || round_ == options_.most_rounds) return false;
  if (round_ > 0 && Now() - began_ > options_.at_most) return false;
  ++round_;
  round_began_ = Measure();
  return true;
}

void Rounds::Compare(const std::string& figure, const std::function<double()>& limit,
                     const std::function<double()>& product) {
  double of_limit = 0, of_product = 0;
  if (product_first()) of_product = product();
  of_limit = limit();
  if (!product_first()) of_product = product();
  Add(figure, of_limit, of_product);
}

void Rounds::Add(const std::string& figure, double limit, double product) {
  // The first round fills caches and page tables, so its samples do not count.
  if (round_ > 0) figures_[figure].push_back({limit, product, round_});
}

void Rounds::Add(const std::string& figure, double product) { Add(figure, 0, product); }

void Rounds::Print() const {
  for (const auto& [figure, samples] : figures_) {
    std::string pairs;
    for (const Sample& sample : samples) {
      absl::StrAppendFormat(&pairs, "%s{\"limit\": %.9g, \"product\": %.9g, \"others\": %.3f}",
                            pairs.empty() ? "" : ", ", sample.limit, sample.product,
                            others_[sample.round]);
    }
    std::cout << absl::StrFormat("{\"figure\": \"%s\", \"pairs\": [%s]}\n", figure, pairs);
  }
  std::cout.flush();
}

}  // namespace memtide

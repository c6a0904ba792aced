#include "base/cuda/fake/card.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/check.h"

namespace memtide::fake_cuda {
namespace {

constexpr const char* kNames[] = {"map",
                                  "map_beside_copies",
                                  "unmap",
                                  "unmap_beside_copies",
                                  "call",
                                  "gradient",
                                  "dispatch",
                                  "moment",
                                  "launch",
                                  "in_gb_s",
                                  "out_gb_s",
                                  "both_gb_s",
                                  "product_tflop_s",
                                  "memory_gb_s"};

// A shorter sleep takes as long.
constexpr Duration kShortestSleep = std::chrono::microseconds(500);

std::map<std::string, double> Read(const std::string& path) {
  std::map<std::string, double> costs;
  std::ifstream file(path);
  MEMTIDE_CHECK(file.good()) << "card=" << path;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name;
    double cost = 0;
    if (!(words >> name)) continue;
    MEMTIDE_CHECK((words >> cost) && cost > 0 && costs.emplace(name, cost).second)
        << path << ": " << line;
  }
  for (const char* name : kNames) MEMTIDE_CHECK(costs.count(name) == 1) << path << ": " << name;
  MEMTIDE_CHECK(costs.size() == std::size(kNames)) << path << ": a name that is not known";
  return costs;
}

void* MapShared(const std::string& path, size_t size) {
  const int fd = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  MEMTIDE_CHECK(fd >= 0 && ftruncate(fd, static_cast<off_t>(size)) == 0) << path;
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  MEMTIDE_CHECK(memory != MAP_FAILED) << path;
  close(fd);
  return memory;
}

Duration CpuTime() {
  timespec time;
  MEMTIDE_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return std::chrono::seconds(time.tv_sec) + Duration(time.tv_nsec);
}

}  // namespace

Card::Card(const std::string& file, uint64_t dilation, const std::string& directory)
    : dilation_(static_cast<double>(dilation)),
      costs_(Read(file)),
      link_(static_cast<Link*>(MapShared(directory + "/link", sizeof(Link)))) {
  static_assert(std::atomic<int64_t>::is_always_lock_free);
}

double Card::Of(const std::string& name) const { return costs_.at(name); }

Duration Card::Played(double microseconds) const {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double, std::micro>(microseconds * dilation_));
}

Duration Card::Kernel(const KernelWork& work) const {
  return Played(
      std::max(work.flop / (Of("product_tflop_s") * 1e6), work.bytes / (Of("memory_gb_s") * 1e3)));
}

Instant Card::FreeAt(Way way) const {
  return Instant(Duration(link_->free_at[static_cast<int>(way)].load()));
}

Instant Card::Copy(Way way, Bytes size, Instant begin) {
  const bool is_in = way == Way::kIn;
  std::atomic<int64_t>& free_at = link_->free_at[static_cast<int>(way)];
  int64_t before = free_at.load();
  for (;;) {
    const Instant start = std::max(begin, Instant(Duration(before)));
    const bool alone = FreeAt(is_in ? Way::kOut : Way::kIn) <= start;
    const double rate = alone ? Of(is_in ? "in_gb_s" : "out_gb_s") : Of("both_gb_s") / 2;
    const Instant end = start + Played(static_cast<double>(size.count()) / (rate * 1e3));
    if (free_at.compare_exchange_weak(before, end.time_since_epoch().count())) return end;
  }
}

void Card::SpendOn(const std::string& function) const {
  const bool maps = function == "cuMemMap";
  if (!maps && function != "cuMemUnmap") return;
  const Instant now = Now();
  const bool copies = FreeAt(Way::kIn) > now || FreeAt(Way::kOut) > now;
  Spend(std::string(maps ? "map" : "unmap") + (copies ? "_beside_copies" : ""));
}

void Card::Spend(const std::string& work) const {
  thread_local Duration owed{0}, used{0};
  const Duration now = CpuTime();
  owed += std::max(Played(Of(work)) - (now - used), Duration::zero());
  used = now;
  if (owed < kShortestSleep) return;
  const Instant begun = Now();
  // tidy(sleep): the time that the work takes on the card's machine.
  std::this_thread::sleep_for(owed);
  owed -= Now() - begun;
}

}  // namespace memtide::fake_cuda

#include "daemon/io/stripes_by_speed.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/types/optional.h"
#include "base/check.h"

namespace memtide {
namespace {

constexpr double kEqual = 0.85;
constexpr double kSlowest = 1.0 / 16;
// A longer cycle must gain more than this.
constexpr double kGoodEnough = 0.99;
// Room is counted in bytes, so that an equal part of it may round to a little less.
constexpr double kRounding = 1e-6;

// Drives of nearly the same speed get the mean of their speeds.
void Level(std::map<size_t, double>* speeds) {
  std::vector<double*> fastest_first;
  for (auto& [drive, speed] : *speeds) fastest_first.push_back(&speed);
  std::sort(fastest_first.begin(), fastest_first.end(),
            [](const double* a, const double* b) { return *a > *b; });
  for (size_t begin = 0, end; begin < fastest_first.size(); begin = end) {
    double sum = 0;
    for (end = begin; end < fastest_first.size(); ++end) {
      if (*fastest_first[end] <= *fastest_first[begin] * kEqual) break;
      sum += *fastest_first[end];
    }
    const double mean = sum / static_cast<double>(end - begin);
    for (size_t i = begin; i < end; ++i) *fastest_first[i] = mean;
  }
}

// The speed to count with, by directory.
std::vector<double> Speeds(const std::vector<StripedDirectory>& directories) {
  double slowest = std::numeric_limits<double>::infinity();
  std::map<size_t, double> drives;
  std::map<size_t, int> directories_on;
  for (const StripedDirectory& directory : directories) {
    if (directory.bytes_per_second > 0) slowest = std::min(slowest, directory.bytes_per_second);
    drives[directory.drive] = directory.bytes_per_second;
    ++directories_on[directory.drive];
  }
  for (auto& [drive, speed] : drives) {
    if (speed <= 0) speed = slowest < std::numeric_limits<double>::infinity() ? slowest : 1;
  }
  Level(&drives);
  std::vector<double> speeds;
  for (const StripedDirectory& directory : directories) {
    speeds.push_back(drives[directory.drive] / directories_on[directory.drive]);
  }
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  for (double& speed : speeds) speed = std::max(speed, fastest * kSlowest);
  return speeds;
}

bool HasRoomFor(const StripedDirectory& directory, uint32_t count, size_t cycle) {
  return count <= directory.largest_part * static_cast<double>(cycle) * (1 + kRounding);
}

// Deals the stripes of a cycle, each to the directory that would end it first. None if there is no
// room for one.
absl::optional<StripeCounts> Deal(const std::vector<StripedDirectory>& directories,
                                  const std::vector<double>& speeds, size_t cycle) {
  StripeCounts counts;
  size_t dealt = 0;
  for (const StripedDirectory& directory : directories) {
    counts.push_back(HasRoomFor(directory, 1, cycle) ? 1 : 0);
    dealt += counts.back();
  }
  for (; dealt < cycle; ++dealt) {
    absl::optional<size_t> first;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (!HasRoomFor(directories[i], counts[i] + 1, cycle)) continue;
      if (!first || (counts[i] + 1) / speeds[i] < (counts[*first] + 1) / speeds[*first]) first = i;
    }
    if (!first) return absl::nullopt;
    ++counts[*first];
  }
  return counts;
}

// Bytes per second of a long transfer, in stripes.
double Throughput(const StripeCounts& counts, const std::vector<double>& speeds, size_t cycle) {
  double slowest = 0;
  for (size_t i = 0; i < counts.size(); ++i) slowest = std::max(slowest, counts[i] / speeds[i]);
  return static_cast<double>(cycle) / slowest;
}

}  // namespace

StripeCounts StripesBySpeed(const std::vector<StripedDirectory>& directories) {
  MEMTIDE_CHECK(!directories.empty() && directories.size() <= kMostStripesPerCycle)
      << directories.size();
  const std::vector<double> speeds = Speeds(directories);
  std::vector<StripeCounts> cycles;
  std::vector<double> throughputs;
  for (size_t cycle = directories.size(); cycle <= kMostStripesPerCycle; ++cycle) {
    const absl::optional<StripeCounts> counts = Deal(directories, speeds, cycle);
    if (!counts) continue;
    cycles.push_back(*counts);
    throughputs.push_back(Throughput(*counts, speeds, cycle));
  }
  if (cycles.empty()) return Stripes::Equal(directories.size());
  const double best = *std::max_element(throughputs.begin(), throughputs.end());
  size_t chosen = 0;
  while (throughputs[chosen] < best * kGoodEnough) ++chosen;
  return cycles[chosen];
}

}  // namespace memtide

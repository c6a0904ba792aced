#include "daemon/replay/compare.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/replay/optimum.h"

namespace memtide {

namespace {

struct Named {
  absl::string_view name;
  absl::optional<Policy> policy;
};

constexpr Named kPolicies[] = {
    {"lru", Policy::kLru},
    {"fifo", Policy::kFifo},
    {"patrickstar", Policy::kPatrickStar},
    {"belady", Policy::kBelady},
    {"memtide", Policy::kMemtide},
    {kOptimum, absl::nullopt},
};

// All results are per iteration, so that traces of different lengths can be compared.
LinkBytes Each(const LinkBytes& sum, size_t iterations) {
  const auto share = [iterations](Bytes bytes) { return Bytes(bytes.count() / iterations); };
  return {share(sum.to_device), share(sum.from_device), share(sum.disk_read),
          share(sum.disk_written)};
}

double Ratio(Bytes bytes, Bytes least) {
  // Where nothing has to move, both may be zero.
  if (bytes == least) return 1;
  return static_cast<double>(bytes.count()) /
         static_cast<double>(std::max<uint64_t>(1, least.count()));
}

LinkBytes Least(const AccessSequence& sequence, const ReplayOptions& options) {
  BoundOptions bound;
  bound.device_slots = options.device_slots;
  bound.host_slots = options.host_slots;
  bound.host_holds_all = !NeedsDisk(sequence, options);
  return LeastBytes(sequence, bound, kWarmUpIterations);
}

}  // namespace

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  for (const Named& each : kPolicies) names.emplace_back(each.name);
  return names;
}

absl::StatusOr<absl::optional<Policy>> ParsePolicy(absl::string_view name) {
  for (const Named& each : kPolicies) {
    if (each.name == name) return each.policy;
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no policy \"", name, "\"; there are ",
                                                 absl::StrJoin(PolicyNames(), ", "), " and all"));
}

absl::StatusOr<std::vector<Outcome>> Compare(const AccessSequence& sequence, ReplayOptions options,
                                             const std::vector<std::string>& policies) {
  MEMTIDE_RETURN_IF_ERROR(CheckReplay(sequence, options));
  // Nothing is predicted in the first iterations, so they do not count.
  const size_t iterations = sequence.iterations() - kWarmUpIterations;
  const LinkBytes least = Each(Least(sequence, options), iterations);
  std::vector<Outcome> outcomes;
  for (const std::string& name : policies) {
    const absl::StatusOr<absl::optional<Policy>> policy = ParsePolicy(name);
    MEMTIDE_CHECK(policy.ok()) << policy.status();
    Outcome outcome;
    outcome.policy = name;
    outcome.moved = least;
    if (policy->has_value()) {
      options.policy = **policy;
      MEMTIDE_ASSIGN_OR_RETURN(const ReplayResult result, Replay(sequence, options));
      outcome.moved = Each(result.counted.moved, iterations);
      outcome.stalled = result.counted.stalled / static_cast<int64_t>(iterations);
      outcome.elapsed = result.counted.elapsed / static_cast<int64_t>(iterations);
    }
    outcome.against_optimum = Ratio(outcome.moved.Total(), least.Total());
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

}  // namespace memtide

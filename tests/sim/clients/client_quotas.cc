// Quotas that administrators set at random while jobs run, and jobs that they end.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/clients/client_simulation.h"

namespace memtide::sim {
namespace {

constexpr Bytes kChunk = MiB(2);
constexpr uint32_t kFirstUser = 1000, kGroup = 50;

}  // namespace

void ClientSimulation::SetQuotas() {
  SetQuotasCall call;
  call.number = next_quotas_++;
  const auto some = [this](uint32_t slots) -> absl::optional<Bytes> {
    if (random_.Percent(30)) return absl::nullopt;
    return kChunk * random_.Below(slots + slots / 4 + 1);
  };
  const auto add = [&](Quota::Kind kind, uint32_t id, const char* name) {
    if (random_.Percent(40)) return;
    Quota quota;
    quota.kind = kind;
    quota.id = id;
    quota.name = name;
    quota.most.bytes = {some(config_.device_slots), some(config_.host_slots),
                        some(config_.ssd_slots)};
    if (random_.Percent(30)) quota.most.jobs = random_.Between(1, 4);
    call.quotas.push_back(std::move(quota));
  };
  // At times there is none.
  if (!random_.Percent(15)) {
    add(Quota::Kind::kUser, kFirstUser, "user:1000");
    add(Quota::Kind::kUser, kFirstUser + 1, "user:1001");
    add(Quota::Kind::kGroup, kGroup, "group:50");
    add(Quota::Kind::kDefault, 0, "default");
  }
  Ask(std::move(call));
}

void ClientSimulation::EndAnyJob() {
  EndJobCall call;
  // Clients make one job each, and more when they come again.
  call.job = JobId(1 + random_.Below(static_cast<uint32_t>(2 * next_session_)));
  if (random_.Percent(50)) call.viewer = kFirstUser + random_.Below(2);
  Ask(call);
}

void ClientSimulation::CheckQuotas() {
  InspectCall inspect;
  inspect.call = CallId(next_call_++);
  inspect.jobs = true;
  std::vector<Effect> effects;
  engine_->Handle(now_, inspect, &effects);
  const auto& seen = std::get<InspectReply>(std::get<Reply>(effects.front()).value);
  std::map<QuotaKey, QuotaUse> uses;
  for (const QuotaUse& use : seen.quotas) {
    if (use.quota.kind == Quota::Kind::kDefault && !use.uid) continue;
    const QuotaKey key{use.quota.kind, use.quota.id, use.uid.value_or(0)};
    uses[key] = use;
    const auto before = quota_uses_.find(key);
    for (const Tier tier : kAllTiers) {
      const int i = static_cast<int>(tier);
      // The bytes of the jobs themselves, of which hidden jobs and guaranteed shares are no part.
      Bytes listed;
      for (const JobInfo& job : seen.jobs) {
        const bool is_in_group = job.uid == kFirstUser;
        const bool counts = use.quota.kind == Quota::Kind::kGroup  ? is_in_group
                            : use.quota.kind == Quota::Kind::kUser ? job.uid == use.quota.id
                                                                   : job.uid == *use.uid;
        if (counts) listed += job.bytes[i];
      }
      if (listed > use.bytes[i]) {
        return verdict_.Broken(absl::StrCat(use.quota.name, " counts ", use.bytes[i].count(),
                                            " of ", listed.count(), " bytes at tier ", i));
      }
      const absl::optional<Bytes>& limit = use.quota.most.bytes[i];
      if (!limit) continue;
      if (use.bytes[i] <= *limit && *limit - use.bytes[i] < kChunk) Hit(ClientProbe::kGrewToQuota);
      const bool was_over = before != quota_uses_.end() && before->second.bytes[i] > *limit;
      if (was_over && use.bytes[i] <= *limit) Hit(ClientProbe::kBackInQuota);
      if (use.bytes[i] <= *limit) continue;
      Hit(ClientProbe::kOverQuota);
      // The bytes that a subject had before it had a quota are not known.
      if (before == quota_uses_.end() || use.bytes[i] <= before->second.bytes[i]) continue;
      return verdict_.Broken(absl::StrCat(
          use.quota.name, " was lent more than its quota of ", limit->count(), " at tier ", i, ": ",
          before->second.bytes[i].count(), ", now ", use.bytes[i].count()));
    }
    const absl::optional<uint32_t>& jobs = use.quota.most.jobs;
    if (jobs && use.jobs > *jobs && before != quota_uses_.end() && use.jobs > before->second.jobs) {
      return verdict_.Broken(absl::StrCat(use.quota.name, " has ", use.jobs, " jobs of ", *jobs));
    }
  }
  quota_uses_ = std::move(uses);
}

}  // namespace memtide::sim

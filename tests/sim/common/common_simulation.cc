#include "tests/sim/common/common_simulation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/state.h"

namespace memtide::sim {
namespace {

constexpr size_t kLinesKept = 160;
constexpr Duration kTick = std::chrono::milliseconds(50);
constexpr int kMostRounds = 400;
const Bytes kChunk = MiB(2);

EngineOptions ToOptions(const CommonConfig& config) {
  EngineOptions options;
  options.host_capacity = kChunk * config.host_slots;
  options.ssd_capacity = kChunk * config.ssd_slots;
  options.limits = config.limits;
  return options;
}

}  // namespace

CommonConfig WithCommonContents(uint64_t seed) {
  Random random(seed ^ 0x636f6d6d6f6e);
  CommonConfig config;
  config.seed = seed;
  config.scripts = random.Between(2, 4);
  config.chunks = random.Between(2, 12);
  config.contents = random.Between(1, 6);
  config.elastic = random.Percent(70);
  if (config.elastic) {
    config.ssd_slots = config.scripts * (config.chunks + 2) + random.Between(8, 60);
    config.host_slots = config.scripts * 12 + random.Between(1, 60);
  } else {
    // Each script asks for its share, and some memory is left for what they have in common.
    config.host_slots = config.scripts * (config.chunks + 6) + random.Between(0, 30);
  }
  config.stamps_of_digest = random.Percent(30) ? random.Between(2, 4) : 1;
  config.hostile = random.Percent(15);
  config.fail_region_percent = random.Percent(20) ? 30 : 0;
  config.steps = random.Between(200, 700);
  config.limits.waiting_calls_per_session = random.Between(3, 8);
  config.limits.max_wait = std::chrono::milliseconds(random.Between(1, 30) * 500);
  config.limits.session_lease = std::chrono::milliseconds(random.Between(4, 20) * 100);
  const bool deadly = random.Percent(30);
  config.weights = {/*complete=*/60,
                    /*tick=*/12,
                    /*connect=*/3,
                    /*fetch=*/25,
                    /*write=*/25,
                    /*release=*/30,
                    /*offer=*/30,
                    /*part=*/random.Percent(50) ? 10u : 0u,
                    /*end part=*/14,
                    /*commit=*/random.Percent(50) ? 6u : 0u,
                    /*evict=*/4,
                    /*prefetch=*/4,
                    /*free=*/random.Percent(50) ? 2u : 0u,
                    /*discard=*/random.Percent(50) ? 2u : 0u,
                    /*die=*/deadly ? 3u : 0u,
                    /*close=*/deadly ? 1u : 0u,
                    /*hang=*/deadly ? 1u : 0u,
                    /*hostile=*/config.hostile ? random.Between(3, 40) : 0u};
  if (random.Percent(20)) config.weights[0] /= 6;
  if (random.Percent(20)) config.weights[5] /= 4;
  return config;
}

CommonSimulation::CommonSimulation(const CommonConfig& config, std::ostream* echo)
    : config_(config),
      node_(&verdict_, &probes_),
      engine_(ToOptions(config)),
      trace_(kLinesKept, echo),
      random_(config.seed ^ 0x636f6d6f7073),
      now_(std::chrono::hours(1)) {
  node_.SetStampsOfDigest(config.stamps_of_digest);
}

CommonOutcome CommonSimulation::Run(const CommonConfig& config, std::ostream* echo) {
  CommonSimulation simulation(config, echo);
  for (uint32_t script = 0; script < config.scripts; ++script) simulation.Connect();
  for (uint32_t step = 0; step < config.steps && simulation.verdict_.ok(); ++step) {
    simulation.Step();
  }
  simulation.Settle();
  simulation.ReadAll();
  simulation.EndAll();
  CommonOutcome outcome = simulation.outcome_;
  outcome.broken = simulation.verdict_.broken();
  outcome.last = simulation.trace_.Last();
  outcome.trace_hash = simulation.trace_.hash();
  return outcome;
}

CommonSimulation::Script* CommonSimulation::Find(SessionId session) {
  const auto found = scripts_.find(session);
  return found == scripts_.end() ? nullptr : &found->second;
}

void CommonSimulation::Ask(Event call) { Feed(WithCall(std::move(call), CallId(next_call_++))); }

void CommonSimulation::Feed(Event event) {
  if (!verdict_.ok()) return;
  ++outcome_.events;
  trace_.Add(now_, event);
  if (const CallId* call = CallOf(event)) calls_[*call] = event;
  if (const auto* gone = std::get_if<ClientGone>(&event)) EndScript(gone->session);
  if (const auto* close = std::get_if<CloseCall>(&event)) EndScript(close->session);
  std::vector<Effect> effects;
  engine_.Handle(now_, event, &effects);
  engine_.CheckInvariants();
  for (const Effect& effect : effects) {
    if (!verdict_.ok()) return;
    trace_.Add(effect);
    node_.Carry(effect);
    Observe(effect);
  }
  if (verdict_.ok() && !config_.hostile) CheckLeases();
  node_.CheckParts();
  AnswerRevokes();
}

void CommonSimulation::AnswerRevokes() {
  while (!revokes_.empty() && verdict_.ok()) {
    const Revoke revoke = revokes_.back();
    revokes_.pop_back();
    Script* const script = Find(revoke.session);
    if (script == nullptr || script->hung || random_.Percent(50)) continue;
    if (std::optional<Event> release = GiveBack(script, revoke.chunks)) Ask(*std::move(release));
  }
}

void CommonSimulation::PassTime(Duration time) {
  now_ += time;
  std::vector<SessionId> renews;
  for (auto& [id, script] : scripts_) {
    if (script.hung || now_ - script.renewed < config_.limits.session_lease / 4) continue;
    script.renewed = now_;
    renews.push_back(id);
  }
  for (const SessionId id : renews) Ask(RenewCall{CallId(), id});
  Feed(Tick{});
}

// Nothing fails, leases are given back and parts are ended: all that waits must end.
void CommonSimulation::Settle() {
  for (int round = 0; round < kMostRounds && verdict_.ok(); ++round) {
    bool idle = true;
    for (size_t left = node_.work().size(); left > 0 && !node_.work().empty(); --left) {
      Feed(node_.Complete(0, absl::OkStatus()));
      idle = false;
    }
    for (const auto& [part, held] : std::map(held_)) {
      const Script* const script = Find(part.first);
      if (script == nullptr || script->hung) continue;
      EndPart(part, part.second % 3 != 0);
      idle = false;
    }
    std::vector<SessionId> ids;
    for (const auto& [id, script] : scripts_) ids.push_back(id);
    for (const SessionId id : ids) {
      Script* const script = Find(id);
      if (script == nullptr || script->hung) continue;
      std::optional<Event> release = GiveBack(script, {});
      if (!release) continue;
      Ask(*std::move(release));
      idle = false;
    }
    if (!verdict_.ok() || (idle && calls_.empty())) return;
    PassTime(kTick);
  }
  for (const auto& [id, call] : calls_) {
    return verdict_.Broken(absl::StrCat("nothing is in its way, and it waits: ", ToText(call)));
  }
}

void CommonSimulation::ReadAll() {
  std::vector<std::pair<SessionId, ChunkId>> all;
  for (const auto& [id, script] : scripts_) {
    if (script.hung || !script.open) continue;
    for (const auto& [chunk, content] : script.contents) all.emplace_back(id, chunk);
  }
  for (const auto& [id, chunk] : all) {
    if (!verdict_.ok() || Find(id) == nullptr) return;
    FetchCall fetch;
    fetch.session = id;
    fetch.tier = Tier::kHost;
    fetch.chunks = {chunk};
    Ask(fetch);
    Settle();
  }
}

void CommonSimulation::EndAll() {
  std::vector<SessionId> ids;
  for (const auto& [id, script] : scripts_) ids.push_back(id);
  for (const SessionId id : ids) Feed(ClientGone{id});
  for (int round = 0; round < 60 && verdict_.ok(); ++round) {
    while (!node_.work().empty() && verdict_.ok()) Feed(node_.Complete(0, absl::OkStatus()));
    PassTime(kTick);
  }
  if (!verdict_.ok()) return;
  if (!calls_.empty()) {
    return verdict_.Broken(
        absl::StrCat("everybody left, and it waits: ", ToText(calls_.begin()->second)));
  }
  InspectCall inspect;
  inspect.call = CallId(next_call_++);
  std::vector<Effect> effects;
  engine_.Handle(now_, inspect, &effects);
  const auto& seen = std::get<InspectReply>(std::get<Reply>(effects.front()).value);
  if (seen.counters.digests_collided > 0) Hit(CommonProbe::kCollided);
  const bool full = std::any_of(seen.pools.begin(), seen.pools.end(),
                                [](const PoolUsage& pool) { return pool.free != pool.capacity; });
  if (seen.chunk_count != 0 || seen.session_count != 0 || seen.waiting_calls != 0 || full) {
    return verdict_.Broken("everybody left, and something stayed");
  }
  if (!node_.regions().empty() || !node_.stores().empty() || !node_.parts().empty()) {
    verdict_.Broken("everybody left, and memory stayed");
  }
}

}  // namespace memtide::sim

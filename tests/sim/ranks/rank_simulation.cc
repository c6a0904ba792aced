#include "tests/sim/ranks/rank_simulation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/state.h"

namespace memtide::sim {
namespace {

constexpr size_t kLinesKept = 160;
constexpr Duration kTick = std::chrono::milliseconds(50);
constexpr int kMostRounds = 400;
const Bytes kChunk = MiB(2);

EngineOptions ToOptions(const RankConfig& config) {
  EngineOptions options;
  if (config.device_slots > 0) options.device_capacities = {kChunk * config.device_slots};
  options.host_capacity = kChunk * config.host_slots;
  options.ssd_capacity = kChunk * config.ssd_slots;
  options.limits = config.limits;
  options.persistent_jobs = config.keeps;
  return options;
}

}  // namespace

RankConfig WithRanks(uint64_t seed) {
  Random random(seed ^ 0x72616e6b73);
  RankConfig config;
  config.seed = seed;
  config.ranks = random.Between(2, 4);
  config.parameters = random.Between(1, 3);
  if (random.Percent(50)) config.device_slots = random.Between(4, 12);
  const uint32_t all = config.ranks * config.parameters * 3;
  if (random.Percent(60)) config.ssd_slots = all + random.Between(4, 20);
  config.host_slots = config.ssd_slots != 0 ? random.Between(8, 16) : all + random.Between(4, 16);
  config.hostile = random.Percent(15);
  config.uncomputed_percent = random.Percent(50) ? random.Between(0, 10) : random.Between(20, 60);
  config.alike_percent = random.Percent(60) ? random.Between(80, 100) : random.Between(10, 80);
  config.steps = random.Between(200, 700);
  config.limits.waiting_calls_per_session = random.Between(3, 8);
  config.limits.max_wait = std::chrono::milliseconds(random.Between(1, 30) * 500);
  config.limits.session_lease = std::chrono::milliseconds(random.Between(4, 20) * 100);
  const bool deadly = random.Percent(30);
  config.weights = {/*complete=*/50,
                    /*tick=*/12,
                    /*connect=*/3,
                    /*fetch=*/25,
                    /*write=*/30,
                    /*release=*/25,
                    /*part=*/30,
                    /*end part=*/30,
                    /*commit=*/14,
                    /*evict=*/4,
                    /*prefetch=*/4,
                    /*free=*/random.Percent(50) ? 1u : 0u,
                    /*discard=*/random.Percent(50) ? 2u : 0u,
                    /*die=*/deadly ? 2u : 0u,
                    /*close=*/deadly ? 1u : 0u,
                    /*hang=*/deadly ? 1u : 0u,
                    /*hostile=*/config.hostile ? random.Between(3, 40) : 0u,
                    /*restart=*/0u};
  if (random.Percent(20)) config.weights[0] /= 6;
  if (random.Percent(20)) config.weights[5] /= 4;
  return config;
}

RankConfig WithKeptRanks(uint64_t seed) {
  RankConfig config = WithRanks(seed);
  Random random(seed ^ 0x6b657074);
  config.keeps = true;
  config.hostile = random.Percent(10);
  config.device_slots = 0;  // What only a device has is lost with the daemon.
  std::vector<uint32_t>& weights = config.weights;
  weights[2] = 12;                   // Connect.
  weights[8] = 40;                   // Commit.
  weights[13] = random.Below(2);     // Die.
  weights[14] = random.Below(2);     // Close.
  weights[17] = random.Percent(50);  // Restart.
  weights[16] = config.hostile ? 10 : 0;
  return config;
}

RankSimulation::RankSimulation(const RankConfig& config, std::ostream* echo)
    : config_(config),
      node_(&verdict_, &probes_),
      engine_(std::make_unique<Engine>(ToOptions(config))),
      trace_(kLinesKept, echo),
      random_(config.seed ^ 0x72616e6b6f7073),
      now_(std::chrono::hours(1)) {}

RankOutcome RankSimulation::Run(const RankConfig& config, std::ostream* echo) {
  RankSimulation simulation(config, echo);
  for (uint32_t rank = 0; rank < config.ranks; ++rank) simulation.Connect();
  for (uint32_t step = 0; step < config.steps && simulation.verdict_.ok(); ++step) {
    simulation.Step();
  }
  simulation.Settle();
  for (uint32_t rank = 0; config.keeps && rank < config.ranks; ++rank) simulation.Connect();
  simulation.Settle();
  simulation.ReadAll();
  simulation.EndAll();
  RankOutcome outcome = simulation.outcome_;
  outcome.broken = simulation.verdict_.broken();
  outcome.last = simulation.trace_.Last();
  outcome.trace_hash = simulation.trace_.hash();
  return outcome;
}

RankSimulation::Rank* RankSimulation::Find(SessionId session) {
  const auto found = ranks_.find(session);
  return found == ranks_.end() ? nullptr : &found->second;
}

void RankSimulation::Ask(Event call) { Feed(WithCall(std::move(call), CallId(next_call_++))); }

void RankSimulation::Feed(Event event) {
  if (!verdict_.ok()) return;
  ++outcome_.events;
  trace_.Add(now_, event);
  committed_now_.clear();
  committed_with_all_.clear();
  committed_contents_.clear();
  freed_now_.clear();
  if (const auto* freed = std::get_if<FreeCall>(&event)) {
    freed_now_.insert(freed->chunks.begin(), freed->chunks.end());
  }
  if (const CallId* call = CallOf(event)) {
    Waiting& waiting = calls_[*call];
    waiting.event = event;
    waiting.since = outcome_.events;
    waiting.called = now_;
    if (const auto* step = std::get_if<StepCall>(&event)) {
      const Rank* const rank = Find(step->session);
      for (uint32_t i = 0; rank != nullptr && i < step->reads; ++i) {
        const auto content = rank->contents.find(step->chunks[i]);
        waiting.read.push_back(content == rank->contents.end() ? kZeros : content->second.stamp);
      }
    }
  }
  // What a rank is about to write it shares no more.
  if (const auto* fetch = std::get_if<FetchCall>(&event)) {
    Rank* const rank = Find(fetch->session);
    for (const ChunkId chunk : fetch->chunks) {
      if (rank == nullptr || fetch->access == Access::kRead) continue;
      const auto content = rank->contents.find(chunk);
      if (content != rank->contents.end()) content->second.made = 0;
    }
  }
  if (const auto* gone = std::get_if<ClientGone>(&event)) EndRank(gone->session);
  if (const auto* close = std::get_if<CloseCall>(&event)) EndRank(close->session);
  if (std::holds_alternative<Tick>(event)) NoteWaits();
  std::vector<Effect> effects;
  engine_->Handle(now_, event, &effects);
  engine_->CheckInvariants();
  const bool is_commit = std::holds_alternative<CommitCall>(event);
  const bool dies = config_.keeps && is_commit && random_.Percent(5);
  for (const Effect& effect : effects) {
    if (!verdict_.ok()) return;
    trace_.Add(effect);
    // A daemon that dies has carried out nothing but the record. What replies say is true then,
    // too.
    const bool is_record = std::holds_alternative<Record>(effect);
    if (!dies || is_record) node_.Carry(effect);
    if (!dies || is_record || std::holds_alternative<Reply>(effect)) Observe(effect);
  }
  if (verdict_.ok()) After();
  if (dies) {
    if (!committed_with_all_.empty()) Hit(RankProbe::kDiedInCommit);
    return Restart();
  }
  AnswerRevokes();
}

void RankSimulation::Restart() {
  if (!verdict_.ok()) return;
  Hit(RankProbe::kRestarted);
  std::vector<SessionId> ids;
  for (const auto& [id, rank] : ranks_) {
    ids.push_back(id);
    for (const auto& [chunk, lease] : rank.leases) {
      if (lease.access == Access::kWrite) node_.Write(lease.place, node_.NewPoison());
    }
  }
  for (const SessionId id : ids) EndRank(id);
  calls_.clear();
  revokes_.clear();
  in_vain_.clear();
  const Restore restore = node_.Restart(&random_);
  engine_ = std::make_unique<Engine>(ToOptions(config_));
  Feed(restore);
}

void RankSimulation::AnswerRevokes() {
  while (!revokes_.empty() && verdict_.ok()) {
    const Revoke revoke = revokes_.back();
    revokes_.pop_back();
    Rank* const rank = Find(revoke.session);
    if (rank == nullptr || rank->hung || random_.Percent(50)) continue;
    if (std::optional<Event> release = GiveBack(rank, revoke.chunks)) Ask(*std::move(release));
  }
}

void RankSimulation::PassTime(Duration time) {
  now_ += time;
  std::vector<SessionId> renews;
  for (auto& [id, rank] : ranks_) {
    if (rank.hung || now_ - rank.renewed < config_.limits.session_lease / 4) continue;
    rank.renewed = now_;
    renews.push_back(id);
  }
  for (const SessionId id : renews) Ask(RenewCall{CallId(), id});
  Feed(Tick{});
}

// Nothing fails, leases are given back and parts are ended: all that waits must end.
void RankSimulation::Settle() {
  for (int round = 0; round < kMostRounds && verdict_.ok(); ++round) {
    bool idle = true;
    for (size_t left = node_.work().size(); left > 0 && !node_.work().empty(); --left) {
      Feed(node_.Complete(0, absl::OkStatus()));
      idle = false;
    }
    for (const auto& [part, held] : std::map(held_)) {
      Rank* const rank = Find(part.first);
      if (rank == nullptr || rank->hung) continue;
      EndPart(rank, part.second, part.second % 3 != 0);
      idle = false;
    }
    std::vector<SessionId> ids;
    for (const auto& [id, rank] : ranks_) ids.push_back(id);
    for (const SessionId id : ids) {
      Rank* const rank = Find(id);
      if (rank == nullptr || rank->hung) continue;
      std::optional<Event> release = GiveBack(rank, {});
      if (!release) continue;
      Ask(*std::move(release));
      idle = false;
    }
    if (!verdict_.ok()) return;
    if (idle) {
      // Commits wait only for ranks that share.
      bool waits = false;
      for (const auto& [id, call] : calls_) {
        waits = waits || std::holds_alternative<CommitCall>(call.event);
      }
      bool in_the_way = false;
      for (const auto& [id, rank] : ranks_) {
        in_the_way = in_the_way || (!WaitsForCommit(id) && rank.has_shared);
      }
      if (waits && !in_the_way && !config_.hostile && !config_.keeps) {
        return verdict_.Broken("commits wait, and no rank that shares has yet to commit");
      }
      if (calls_.empty()) return;
    }
    PassTime(kTick);
  }
  for (const auto& [id, call] : calls_) {
    return verdict_.Broken(
        absl::StrCat("nothing is in its way, and it waits: ", ToText(call.event)));
  }
}

void RankSimulation::ReadAll() {
  std::vector<std::pair<SessionId, ChunkId>> all;
  for (const auto& [id, rank] : ranks_) {
    if (rank.hung || !rank.open) continue;
    for (const auto& [chunk, content] : rank.contents) all.emplace_back(id, chunk);
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

void RankSimulation::EndAll() {
  std::vector<SessionId> ids;
  for (const auto& [id, rank] : ranks_) ids.push_back(id);
  for (const SessionId id : ids) Feed(ClientGone{id});
  if (config_.keeps) PassTime(2 * kTimeToLive);
  for (int round = 0; round < 60 && verdict_.ok(); ++round) {
    while (!node_.work().empty() && verdict_.ok()) Feed(node_.Complete(0, absl::OkStatus()));
    PassTime(kTick);
  }
  if (!verdict_.ok()) return;
  if (!calls_.empty()) {
    return verdict_.Broken(
        absl::StrCat("everybody left, and it waits: ", ToText(calls_.begin()->second.event)));
  }
  InspectCall inspect;
  inspect.call = CallId(next_call_++);
  std::vector<Effect> effects;
  engine_->Handle(now_, inspect, &effects);
  for (const Effect& effect : effects) {
    const auto* reply = std::get_if<Reply>(&effect);
    if (reply == nullptr) continue;
    const InspectReply& left = std::get<InspectReply>(reply->value);
    bool free = left.chunk_count == 0 && left.waiting_calls == 0 && left.session_count == 0;
    for (const PoolUsage& pool : left.pools) free = free && pool.free == pool.capacity;
    if (!free) return verdict_.Broken("everybody left, and something stayed");
  }
  if (!node_.regions().empty() || !node_.stores().empty() || !node_.parts().empty()) {
    verdict_.Broken("everybody left, and memory stayed");
  }
}

}  // namespace memtide::sim

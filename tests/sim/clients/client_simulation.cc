#include "tests/sim/clients/client_simulation.h"

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/state.h"

namespace memtide::sim {
namespace {

constexpr size_t kClientLinesKept = 160;
constexpr Duration kTick = std::chrono::milliseconds(50);
constexpr int kMostRounds = 400, kRoundsToEnd = 60;

}  // namespace

ClientSimulation::ClientSimulation(const ClientConfig& config, uint64_t stream, std::ostream* echo)
    : config_(config),
      node_(&verdict_, &probes_),
      engine_(std::make_unique<Engine>(ToOptions(config))),
      trace_(kClientLinesKept, echo),
      random_(config.seed ^ stream),
      now_(std::chrono::hours(1)) {
  node_.SetStampsOfDigest(config.stamps_of_digest);
}

ClientOutcome ClientSimulation::RunAll() {
  for (uint32_t client = 0; client < config_.clients; ++client) Connect();
  for (uint32_t step = 0; step < config_.steps && verdict_.ok(); ++step) Step();
  Settle();
  ReadAll();
  EndAll();
  outcome_.broken = verdict_.broken();
  outcome_.last = trace_.Last();
  outcome_.trace_hash = trace_.hash();
  return outcome_;
}

ClientSimulation::Client* ClientSimulation::Find(SessionId session) {
  const auto found = clients_.find(session);
  return found == clients_.end() ? nullptr : &found->second;
}

std::vector<SessionId> ClientSimulation::Sessions() const {
  std::vector<SessionId> ids;
  for (const auto& [id, client] : clients_) ids.push_back(id);
  return ids;
}

void ClientSimulation::Ask(Event call) { Feed(WithCall(std::move(call), CallId(next_call_++))); }

void ClientSimulation::Feed(Event event) {
  if (!verdict_.ok()) return;
  ++outcome_.events;
  trace_.Add(now_, event);
  const auto* const freed = std::get_if<FreeCall>(&event);
  freed_now_ = freed == nullptr ? std::vector<ChunkId>() : freed->chunks;
  if (const CallId* call = CallOf(event)) {
    Waiting& waiting = calls_[*call];
    waiting.event = event;
    waiting.since = outcome_.events;
    waiting.called = now_;
    if (const auto* step = std::get_if<StepCall>(&event)) {
      const Client* const client = Find(step->session);
      for (uint32_t i = 0; client != nullptr && i < step->reads; ++i) {
        const auto content = client->contents.find(step->chunks[i]);
        waiting.read.push_back(content == client->contents.end() ? kZeros : content->second.stamp);
      }
    }
  }
  Before(event);
  if (const auto* gone = std::get_if<ClientGone>(&event)) EndClient(gone->session);
  if (const auto* close = std::get_if<CloseCall>(&event)) EndClient(close->session);
  std::vector<Effect> effects;
  engine_->Handle(now_, event, &effects);
  engine_->CheckInvariants();
  dies_ = config_.keeps && std::holds_alternative<CommitCall>(event) && random_.Percent(5);
  for (const Effect& effect : effects) {
    if (!verdict_.ok()) return;
    trace_.Add(effect);
    // A daemon that dies has carried out nothing but the record. Replies are true then, too.
    const bool is_record = std::holds_alternative<Record>(effect);
    if (!dies_ || is_record) node_.Carry(effect);
    if (!dies_ || is_record || std::holds_alternative<Reply>(effect)) Observe(effect);
  }
  if (verdict_.ok()) After();
  if (verdict_.ok() && config_.weights.count(ClientOp::kSetQuotas) > 0) CheckQuotas();
  dies_ ? Restart() : AnswerRevokes();
}

void ClientSimulation::Restart() {
  if (!verdict_.ok()) return;
  Hit(ClientProbe::kRestarted);
  for (const auto& [id, client] : clients_) Spoil(client);
  for (const SessionId id : Sessions()) EndClient(id);
  calls_.clear();
  revokes_.clear();
  const Restore restore = node_.Restart(&random_);
  engine_ = std::make_unique<Engine>(ToOptions(config_));
  Feed(restore);
}

void ClientSimulation::AnswerRevokes() {
  while (!revokes_.empty() && verdict_.ok()) {
    const Revoke revoke = revokes_.back();
    revokes_.pop_back();
    Client* const client = Find(revoke.session);
    if (client == nullptr || client->hung || random_.Percent(50)) continue;
    GiveBack(client, revoke.chunks);
  }
}

void ClientSimulation::PassTime(Duration time) {
  now_ += time;
  std::vector<SessionId> renews;
  for (auto& [id, client] : clients_) {
    if (client.hung || now_ - client.renewed < config_.limits.session_lease / 4) continue;
    client.renewed = now_;
    renews.push_back(id);
  }
  for (const SessionId id : renews) Ask(RenewCall{CallId(), id});
  Feed(Tick{});
}

// Nothing fails, leases are given back and parts are ended: all that waits must end.
void ClientSimulation::Settle() {
  for (int round = 0; round < kMostRounds && verdict_.ok(); ++round) {
    bool idle = true;
    for (size_t left = node_.work().size(); left > 0 && !node_.work().empty(); --left) {
      Feed(node_.Complete(0, absl::OkStatus()));
      idle = false;
    }
    for (const auto& [part, held] : std::map(held_)) {
      const Client* const client = Find(part.first);
      if (client == nullptr || client->hung) continue;
      EndPart(part, part.second % 3 != 0);
      idle = false;
    }
    for (const SessionId id : Sessions()) {
      Client* const client = Find(id);
      if (client == nullptr || client->hung) continue;
      if (SettleClient(client)) idle = false;
    }
    if (!verdict_.ok()) return;
    if (idle) CheckIdle();
    if (idle && calls_.empty()) return;
    PassTime(kTick);
  }
  for (const auto& [id, call] : calls_) {
    return verdict_.Broken(
        absl::StrCat("nothing is in its way, and it waits: ", ToText(call.event)));
  }
}

void ClientSimulation::ReadAll() {
  std::vector<std::pair<SessionId, ChunkId>> all;
  for (const auto& [id, client] : clients_) {
    if (client.hung || !client.open) continue;
    for (const auto& [chunk, content] : client.contents) all.emplace_back(id, chunk);
  }
  for (const auto& [id, chunk] : all) {
    if (!verdict_.ok() || Find(id) == nullptr) return;
    FetchToHost(id, Access::kRead, {chunk});
    Settle();
  }
}

void ClientSimulation::EndAll() {
  for (const SessionId id : Sessions()) Feed(ClientGone{id});
  if (config_.keeps) PassTime(2 * kTimeToLive);
  for (int round = 0; round < kRoundsToEnd && verdict_.ok(); ++round) {
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
  const auto& seen = std::get<InspectReply>(std::get<Reply>(effects.front()).value);
  if (seen.counters.digests_collided > 0) Hit(ClientProbe::kCollided);
  const bool all_free =
      std::all_of(seen.pools.begin(), seen.pools.end(),
                  [](const PoolUsage& pool) { return pool.free == pool.capacity; });
  if (seen.chunk_count != 0 || seen.session_count != 0 || seen.waiting_calls != 0 || !all_free) {
    return verdict_.Broken("everybody left, and something stayed");
  }
  if (!node_.regions().empty() || !node_.stores().empty() || !node_.parts().empty()) {
    verdict_.Broken("everybody left, and memory stayed");
  }
}

}  // namespace memtide::sim

// The operations of the ranks.
#include "tests/sim/ranks/rank_simulation.h"

namespace memtide::sim {
namespace {

constexpr uint32_t kChunksOfParameter = 3;  // Gradient, parameter, shadow.

}  // namespace

ClientConfig WithRanks(uint64_t seed) {
  Random random(seed ^ 0x72616e6b73);
  ClientConfig config;
  config.seed = seed;
  config.wrong_ends = true;
  config.clients = random.Between(2, 4);
  config.chunks = random.Between(1, 3) * kChunksOfParameter;
  if (random.Percent(50)) config.device_slots = random.Between(4, 12);
  const uint32_t all = config.clients * config.chunks;
  if (random.Percent(60)) config.ssd_slots = all + random.Between(4, 20);
  config.host_slots = config.ssd_slots != 0 ? random.Between(8, 16) : all + random.Between(4, 16);
  config.hostile = random.Percent(15);
  config.uncomputed_percent = random.Percent(50) ? random.Between(0, 10) : random.Between(20, 60);
  config.alike_percent = random.Percent(60) ? random.Between(80, 100) : random.Between(10, 80);
  config.weights = {{ClientOp::kComplete, 50}, {ClientOp::kTick, 12},    {ClientOp::kConnect, 3},
                    {ClientOp::kFetch, 25},    {ClientOp::kWrite, 30},   {ClientOp::kRelease, 25},
                    {ClientOp::kPart, 30},     {ClientOp::kEndPart, 30}, {ClientOp::kCommit, 14},
                    {ClientOp::kEvict, 4},     {ClientOp::kFree, 1},     {ClientOp::kDiscard, 2},
                    {ClientOp::kDie, 2},       {ClientOp::kClose, 1},    {ClientOp::kHang, 1}};
  DrawRun({ClientOp::kFree, ClientOp::kDiscard}, &random, &config);
  return config;
}

ClientConfig WithKeptRanks(uint64_t seed) {
  ClientConfig config = WithRanks(seed);
  Random random(seed ^ 0x6b657074);
  config.keeps = true;
  config.hostile = random.Percent(10);
  config.device_slots = 0;  // Content that only a device has is lost with the daemon.
  config.weights[ClientOp::kConnect] = 12;
  config.weights[ClientOp::kCommit] = 40;
  config.weights[ClientOp::kDie] = random.Below(2);
  config.weights[ClientOp::kClose] = random.Below(2);
  config.weights[ClientOp::kRestart] = random.Percent(50);
  config.weights[ClientOp::kHostile] = config.hostile ? 10 : 0;
  return config;
}

RankSimulation::RankSimulation(const ClientConfig& config, std::ostream* echo)
    : ClientSimulation(config, /*stream=*/0x72616e6b6f7073, echo) {}

ClientOutcome RankSimulation::Run(const ClientConfig& config, std::ostream* echo) {
  return RankSimulation(config, echo).RunAll();
}

void RankSimulation::Connect() {
  std::set<uint32_t> there;
  for (const auto& [id, rank] : clients_) there.insert(rank.number);
  Rank rank;
  while (there.count(rank.number) != 0) ++rank.number;
  if (rank.number >= config_.clients) return;
  OpenCall open;
  open.job_name = "training";
  open.rank = rank.number;
  open.ranks = config_.clients;
  if (config_.keeps) open.time_to_live = kTimeToLive;
  ConnectAs(rank, open);
}

// By the step and the number of the chunk.
Stamp RankSimulation::AlikeStamp(const Rank& rank, ChunkId chunk) {
  const auto found = std::find(rank.chunks.begin(), rank.chunks.end(), chunk);
  return (rank.step + 1) * 1000 + static_cast<Stamp>(found - rank.chunks.begin());
}

bool RankSimulation::MayDiscard(const Rank& rank, ChunkId chunk) const {
  return !IsBusy(rank, chunk) && !Waits<CommitCall>(rank.session);
}

// Kept ranks come back before.
void RankSimulation::ReadAll() {
  for (uint32_t rank = 0; config_.keeps && rank < config_.clients; ++rank) Connect();
  Settle();
  ClientSimulation::ReadAll();
}

void RankSimulation::StartPart(Rank* rank) {
  if (Waits<CommitCall>(rank->session)) return;
  StepCall call;
  call.session = rank->session;
  const uint32_t parameters = config_.chunks / kChunksOfParameter;
  const uint32_t first = random_.Below(parameters);
  const uint32_t count = 1 + (first + 1 < parameters && random_.Percent(20));
  for (const size_t of : {0, 1, 2}) {
    for (uint32_t i = first; i < first + count; ++i) {
      call.chunks.push_back(rank->chunks[i * kChunksOfParameter + of]);
    }
  }
  call.reads = 2 * count;
  for (const ChunkId chunk : call.chunks) {
    if (IsBusy(*rank, chunk) || rank->contents.count(chunk) == 0) return;
    const auto names = [&](const FetchCall& fetch) { return Names(fetch.chunks, chunk); };
    if (Waits<FetchCall>(rank->session, names)) return;
  }
  // A content that reads as anything has no digest.
  for (uint32_t i = 0; i < call.reads; ++i) {
    const Content& content = rank->contents.at(call.chunks[i]);
    if (!content.defined || content.torn) return;
  }
  call.part = 1 + random_.Below(4);
  if (random_.Percent(30)) call.deadline = config_.limits.max_wait / 2;
  if (!random_.Percent(8)) {
    // The elements, and the step with the options, which ranks do not agree about at times.
    call.contents = PartContents{{first + 1, rank->step + 1 + 100 * random_.Percent(5)}, {}};
    call.contents->work.low = call.contents->work.low * 8 + count;
    for (uint32_t i = 0; i < call.reads; ++i) {
      const bool known = random_.Percent(90);
      const Stamp stamp = rank->contents.at(call.chunks[i]).stamp;
      call.contents->reads.push_back(known ? Digest{1, stamp + 1} : Digest());
    }
  }
  Undefine(rank, {call.chunks.begin() + call.reads, call.chunks.end()});
  Ask(call);
}

void RankSimulation::Commit(Rank* rank) {
  if (Waits<StepCall>(rank->session)) return;
  if (Waits<CommitCall>(rank->session) && !random_.Percent(10)) return;
  CommitCall call;
  call.session = rank->session;
  call.step = rank->step + 1;
  if (random_.Percent(5)) call.step = rank->step + random_.Below(3);
  for (uint32_t i = 0; i < config_.chunks; i += kChunksOfParameter) {
    const ChunkId chunk = rank->chunks[i + 1], shadow = rank->chunks[i + 2];
    if (rank->contents.count(chunk) == 0 || rank->contents.count(shadow) == 0) continue;
    if (!rank->contents[shadow].defined || random_.Percent(3)) continue;
    call.chunks.push_back(chunk);
    call.shadows.push_back(shadow);
  }
  call.with_all_ranks = config_.keeps && !random_.Percent(10);
  if (call.chunks.empty() && !call.with_all_ranks && !random_.Percent(5)) return;
  call.keep_old_content = random_.Percent(10);
  Ask(call);
}

void RankSimulation::Hostile(Rank* rank) {
  const ChunkId mine = Pick(rank->chunks), other = AnyChunkOfAll(), third = AnyChunkOfAll();
  switch (random_.Below(8)) {
    case 0: {
      const Access access = random_.Percent(50) ? Access::kWrite : Access::kRead;
      return FetchToHost(rank->session, access, {mine, other});
    }
    case 1:
      rank->leases.erase(other);
      return Ask(FreeCall{CallId(), rank->session, next_request_++, {other}});
    case 2:
      rank->leases.erase(other);
      return Ask(DiscardCall{CallId(), rank->session, next_request_++, {other}});
    case 3:
      rank->leases.erase(other);
      rank->leases.erase(third);
      return Ask(EvictCall{CallId(), rank->session, Tier::kHost, {other, third}});
    case 4:
      return CommitOne(*rank, other, random_.Percent(50) ? mine : third);
    case 5: {
      OpenCall open;
      open.session = SessionId(next_session_++);
      Feed(ClientConnected{open.session, 1000, 1});
      open.job_name = "training";
      open.rank = random_.Below(6);
      open.ranks = random_.Below(6);
      Ask(open);
      return Feed(ClientGone{open.session});
    }
    default: {
      StepCall call;
      call.session = rank->session;
      call.chunks = {mine, other, third};
      if (random_.Percent(60)) call.chunks[2] = rank->chunks[2];
      if (random_.Percent(50)) call.chunks[0] = rank->chunks[0], call.chunks[1] = rank->chunks[1];
      call.reads = random_.Below(4);
      call.part = random_.Below(4);
      call.contents = PartContents{{1, rank->step + 1}, {}};
      call.contents->work.low = call.contents->work.low * 8 + 1;
      for (uint32_t i = 0; i < random_.Below(4); ++i) {
        const auto content = rank->contents.find(call.chunks[i % 3]);
        const Stamp stamp = content == rank->contents.end() ? 7 : content->second.stamp;
        call.contents->reads.push_back({1, stamp + 1});
      }
      return Ask(call);
    }
  }
}

}  // namespace memtide::sim

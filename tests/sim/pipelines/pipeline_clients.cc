// The operations of the stages of pipelines.
#include <algorithm>
#include <string>

#include "tests/sim/pipelines/pipeline_simulation.h"

namespace memtide::sim {
namespace {

constexpr uint32_t kChunksOfWeight = 4;  // Two rooms, the gradient and the shadow chunk.

PipelinePlan DrawPlan(Random* random) {
  PipelinePlan plan;
  plan.jobs = static_cast<StageJobs>(random->Below(3));
  // A job that outlives a death has both versions of its last step: only shadow chunks grant that.
  plan.way = plan.keeps() ? StepWay::kIntoShadow : static_cast<StepWay>(random->Below(4));
  plan.stages = random->Between(2, 4);
  plan.weights = random->Between(1, 3);
  plan.micro_batches = plan.stages + random->Below(3);
  // Ranks of one job share host memory.
  plan.on_device = plan.jobs != StageJobs::kRanks && random->Percent(60);
  plan.leases_all = random->Percent(30);
  return plan;
}

}  // namespace

PipelineConfig WithPipelines(uint64_t seed) {
  Random random(seed ^ 0x32627773);
  PipelineConfig config;
  ClientConfig& node = config.node;
  node.seed = seed;
  config.scripts = random.Below(3);
  node.chunks = random.Between(2, 6);
  node.contents = random.Between(1, 6);
  uint32_t chunks = config.scripts * (node.chunks + 4), stages = 0;
  for (uint32_t left = random.Between(1, 2); left > 0; --left) {
    const PipelinePlan plan = DrawPlan(&random);
    chunks += plan.stages * (plan.weights * kChunksOfWeight + 2);
    stages += plan.stages;
    node.keeps = node.keeps || plan.keeps();
    config.pipelines.push_back(plan);
  }
  node.clients = config.scripts + stages;
  if (random.Percent(40)) node.device_slots = node.clients * 4 + random.Between(1, 12);
  node.elastic = true;
  node.ssd_slots = 2 * chunks + random.Between(16, 60);
  // Most of the chunks are on SSD.
  node.host_slots = node.clients * 4 + random.Between(4, 24);
  if (random.Percent(40)) node.host_reserve = random.Between(2, 10);
  if (random.Percent(40)) node.fail_disk_percent = random.Between(1, 15);
  node.write_percent = 40;
  node.uncomputed_percent = random.Percent(50) ? 0 : random.Between(5, 30);
  node.weights = {{ClientOp::kComplete, 60}, {ClientOp::kTick, 10},      {ClientOp::kConnect, 6},
                  {ClientOp::kFetch, 60},    {ClientOp::kWrite, 20},     {ClientOp::kRelease, 20},
                  {ClientOp::kOffer, 4},     {ClientOp::kPart, 10},      {ClientOp::kEndPart, 20},
                  {ClientOp::kCommit, 6},    {ClientOp::kEvict, 3},      {ClientOp::kFree, 1},
                  {ClientOp::kDiscard, 1},   {ClientOp::kDie, 1},        {ClientOp::kClose, 1},
                  {ClientOp::kHang, 1},      {ClientOp::kHostMemory, 3}, {ClientOp::kRestart, 1}};
  DrawRun({ClientOp::kFree, ClientOp::kDiscard, ClientOp::kEvict}, &random, &node);
  node.steps = random.Between(600, 1400);
  if (node.host_reserve == 0) node.weights.erase(ClientOp::kHostMemory);
  if (!node.keeps || random.Percent(50)) node.weights.erase(ClientOp::kRestart);
  return config;
}

PipelineSimulation::PipelineSimulation(const PipelineConfig& config, std::ostream* echo)
    : CommonSimulation(config.node, /*stream=*/0x3262776f7073, echo),
      plans_(config.pipelines),
      scripts_(config.scripts) {}

ClientOutcome PipelineSimulation::Run(const PipelineConfig& config, std::ostream* echo) {
  return PipelineSimulation(config, echo).RunAll();
}

// A pipeline begins anew when all of its stages have ended.
void PipelineSimulation::Connect() {
  for (size_t pipeline = 0; pipeline < plans_.size(); ++pipeline) {
    if (broken_.count(pipeline) != 0) continue;
    for (uint32_t stage = 0; stage < plans_[pipeline].stages; ++stage) {
      if (sessions_.count({pipeline, stage}) == 0) return ConnectStage({pipeline, stage});
    }
  }
  if (clients_.size() - stages_.size() < scripts_) CommonSimulation::Connect();
}

void PipelineSimulation::ConnectStage(Key key) {
  const auto& [pipeline, number] = key;
  const PipelinePlan& plan = plans_[pipeline];
  OpenCall open;
  open.elastic = true;
  const std::string name = "pipeline" + std::to_string(pipeline);
  if (plan.keeps()) open.time_to_live = kTimeToLive;
  if (plan.jobs == StageJobs::kRanks) {
    open.job_name = name;
    open.rank = number;
    open.ranks = plan.stages;
  } else if (plan.jobs == StageJobs::kGroup) {
    open.job_name = name + "/" + std::to_string(number);
    open.group = name;
    open.group_rank = number;
    open.group_ranks = plan.stages;
  }
  if (config_.device_slots > 0) {
    open.device_memory = MemoryKind::kSharedMemory;
    open.device_share = MiB(2) * 4;
  }
  const SessionId session(next_session_);
  stages_[session].key = key;
  sessions_[key] = session;
  Client client;
  client.number = number;
  ConnectAs(client, open);
}

void PipelineSimulation::StepClient(Client* client, ClientOp operation) {
  Stage* const stage = FindStage(client->session);
  if (stage == nullptr) return CommonSimulation::StepClient(client, operation);
  if (client->chunks.empty()) {
    if (client->allocating) return;
    client->allocating = true;
    const uint32_t count = PlanOf(*stage).weights * kChunksOfWeight;
    return Ask(AllocateCall{CallId(), client->session, next_request_++, count});
  }
  switch (operation) {
    case ClientOp::kDie:
    case ClientOp::kClose:
    case ClientOp::kHang:
      return CommonSimulation::StepClient(client, operation);
    case ClientOp::kEvict: {
      // An eviction would end a lease that a pass has.
      const ChunkId chunk = Pick(client->chunks);
      if (client->leases.count(chunk) != 0) return;
      const Tier tier = random_.Percent(70) ? Tier::kSsd : Tier::kHost;
      return Ask(EvictCall{CallId(), client->session, tier, {chunk}});
    }
    case ClientOp::kEndPart:
      CommonSimulation::StepClient(client, operation);
      break;
    default:
      break;
  }
  client = Find(client->session);
  if (client != nullptr && verdict_.ok()) Train(client, stage);
}

// One of the things that the stage can do now.
void PipelineSimulation::Train(Client* client, Stage* stage) {
  // Launchers kill the other stages when one has ended.
  if (broken_.count(stage->key.first) != 0 && random_.Percent(40)) return Die(client);
  if (stage->resumes) {
    stage->resumes = false;
    DiscardCall discard{CallId(), client->session, next_request_++, {}};
    for (uint32_t weight = 0; weight < PlanOf(*stage).weights; ++weight) {
      discard.chunks.push_back(Shadow(*client, weight));
    }
    return Ask(discard);
  }
  std::vector<PassKind> begin, advance;
  if (!stage->is_filled && stage->passes.empty()) begin.push_back(PassKind::kFill);
  if (CanForward(*stage)) begin.push_back(PassKind::kForward);
  if (CanBackward(*stage)) begin.push_back(PassKind::kBackward);
  if (CanStep(*stage)) begin.push_back(PassKind::kStep);
  for (const Pass& pass : stage->passes) {
    if (!pass.fetch) advance.push_back(pass.kind);
  }
  const bool steps_by_parts = stage->steps && PlanOf(*stage).way != StepWay::kInPlace;
  if (steps_by_parts && random_.Percent(50)) return AdvanceStep(client, stage);
  if (!advance.empty() && (begin.empty() || random_.Percent(70))) {
    return Advance(client, stage, Pick(advance));
  }
  if (!begin.empty()) return BeginPass(client, stage, Pick(begin));
  if (steps_by_parts) AdvanceStep(client, stage);
}

bool PipelineSimulation::CanForward(const Stage& stage) const {
  const PipelinePlan& plan = PlanOf(stage);
  const uint32_t number = stage.key.second;
  const bool runs = std::any_of(stage.passes.begin(), stage.passes.end(),
                                [](const Pass& pass) { return pass.kind == PassKind::kForward; });
  if (!stage.is_filled || runs) return false;
  if (stage.forwards - stage.backwards >= plan.stages - number) return false;
  if (VersionFor(stage, stage.forwards) > stage.version) return false;
  if (number == 0) return true;
  const Stage* const before = Neighbour(stage, number - 1);
  return before != nullptr && before->forwards > stage.forwards;
}

bool PipelineSimulation::CanBackward(const Stage& stage) const {
  const PipelinePlan& plan = PlanOf(stage);
  const uint32_t number = stage.key.second;
  const bool runs = std::any_of(stage.passes.begin(), stage.passes.end(),
                                [](const Pass& pass) { return pass.kind == PassKind::kBackward; });
  if (runs || stage.steps || stage.backwards >= stage.forwards) return false;
  // A step has the gradient of one batch.
  if (stage.backwards / plan.micro_batches > stage.version) return false;
  if (number + 1 == plan.stages) return true;
  const Stage* const after = Neighbour(stage, number + 1);
  return after != nullptr && after->backwards > stage.backwards;
}

bool PipelineSimulation::CanStep(const Stage& stage) const {
  return !stage.steps && stage.is_filled &&
         stage.backwards == (stage.version + 1) * PlanOf(stage).micro_batches;
}

void PipelineSimulation::BeginPass(Client* client, Stage* stage, PassKind kind) {
  const uint32_t weights = PlanOf(*stage).weights;
  Pass pass;
  pass.kind = kind;
  pass.micro_batch = kind == PassKind::kBackward ? stage->backwards : stage->forwards;
  const uint64_t version = VersionFor(*stage, pass.micro_batch);
  if (kind == PassKind::kStep) {
    stage->steps = true;
    stage->made.clear();
    stage->has_discarded = false;
    if (PlanOf(*stage).way != StepWay::kInPlace) return AdvanceStep(client, stage);
  }
  for (uint32_t i = 0; i < weights; ++i) {
    const uint32_t weight = kind == PassKind::kBackward ? weights - 1 - i : i;
    if (kind == PassKind::kFill) {
      pass.uses.push_back({Room(*client, weight, 0), Access::kWrite, weight});
    } else if (kind == PassKind::kStep) {
      pass.uses.push_back({Room(*client, weight, stage->version), Access::kRead, weight});
      pass.uses.push_back({Gradient(*client, weight), Access::kRead, weight});
      pass.uses.push_back({Room(*client, weight, stage->version + 1), Access::kWrite, weight});
    } else {
      pass.uses.push_back({Room(*client, weight, version), Access::kRead, weight});
    }
    if (kind == PassKind::kBackward) {
      pass.uses.push_back({Gradient(*client, weight), Access::kWrite, weight});
    }
  }
  stage->passes.push_back(std::move(pass));
  Advance(client, stage, kind);
}

void PipelineSimulation::Advance(Client* client, Stage* stage, PassKind kind) {
  Pass* const pass = FindPass(stage, kind);
  if (pass->next == pass->uses.size()) return EndPass(client, stage, kind);
  const Use& use = pass->uses[pass->next];
  std::vector<ChunkId> unused;
  // It begins anew, as a lease was refused. Else it needs only what it has leased of this weight.
  if (pass->next == 0) unused.assign(pass->held.begin(), pass->held.end());
  if (pass->next == 0) pass->held.clear();
  for (size_t i = 0; i < pass->next && !PlanOf(*stage).leases_all; ++i) {
    if (pass->uses[i].weight == use.weight) continue;
    if (pass->held.erase(pass->uses[i].chunk) != 0) unused.push_back(pass->uses[i].chunk);
  }
  if (!unused.empty()) return GiveUp(client, stage, std::move(unused));
  FetchCall fetch;
  fetch.call = CallId(next_call_++);
  fetch.session = client->session;
  // Content that a daemon's end must leave is written in host memory.
  const bool stays = PlanOf(*stage).keeps() && use.access == Access::kWrite;
  const bool on_device = config_.device_slots != 0 && PlanOf(*stage).on_device && !stays;
  fetch.tier = on_device ? Tier::kDevice : Tier::kHost;
  fetch.access = use.access;
  fetch.chunks = {use.chunk};
  pass->fetch = fetch.call;
  Feed(fetch);
}

// Parts make the new version, one weight after the other.
void PipelineSimulation::AdvanceStep(Client* client, Stage* stage) {
  const PipelinePlan& plan = PlanOf(*stage);
  const SessionId session = client->session;
  const bool computes = std::any_of(held_.begin(), held_.end(),
                                    [&](const auto& part) { return part.first.first == session; });
  if (computes || Waits<StepCall>(session) || Waits<CommitCall>(session) ||
      Waits<DiscardCall>(session)) {
    return;
  }
  if (plan.way == StepWay::kAfterDiscard && !stage->has_discarded) {
    stage->has_discarded = true;
    DiscardCall discard{CallId(), session, next_request_++, {}};
    for (uint32_t weight = 0; weight < plan.weights; ++weight) {
      discard.chunks.push_back(Room(*client, weight, stage->version + 1));
    }
    return Ask(discard);
  }
  for (uint32_t weight = 0; weight < plan.weights; ++weight) {
    if (stage->made.count(weight) != 0) continue;
    StepCall call;
    call.session = session;
    call.chunks = {
        Room(*client, weight, stage->version), Gradient(*client, weight),
        plan.commits() ? Shadow(*client, weight) : Room(*client, weight, stage->version + 1)};
    call.reads = 2;
    call.part = weight + 1;
    return Ask(call);
  }
  if (!plan.commits()) return SetVersion(client, stage, stage->version + 1);
  CommitCall commit;
  commit.session = session;
  commit.step = client->step + 1;
  commit.with_all_ranks = plan.keeps();
  for (uint32_t weight = 0; weight < plan.weights; ++weight) {
    commit.chunks.push_back(Room(*client, weight, stage->version + 1));
    commit.shadows.push_back(Shadow(*client, weight));
  }
  Ask(commit);
}

void PipelineSimulation::EndPass(Client* client, Stage* stage, PassKind kind) {
  const Pass pass = *FindPass(stage, kind);
  stage->passes.erase(std::find_if(stage->passes.begin(), stage->passes.end(),
                                   [kind](const Pass& each) { return each.kind == kind; }));
  if (kind == PassKind::kFill) stage->is_filled = true;
  if (kind == PassKind::kForward) ++stage->forwards;
  if (kind == PassKind::kBackward) ++stage->backwards;
  if (kind == PassKind::kStep) SetVersion(client, stage, stage->version + 1);
  if (stage->forwards - stage->backwards == PlanOf(*stage).stages) Hit(ClientProbe::kFullPipeline);
  GiveUp(client, stage, {pass.held.begin(), pass.held.end()});
}

// A pass needs the chunks no more; others of the stage may.
void PipelineSimulation::GiveUp(Client* client, Stage* stage, std::vector<ChunkId> chunks) {
  chunks.erase(std::remove_if(chunks.begin(), chunks.end(),
                              [stage](ChunkId chunk) {
                                return std::any_of(stage->passes.begin(), stage->passes.end(),
                                                   [chunk](const Pass& pass) {
                                                     return pass.held.count(chunk) != 0;
                                                   });
                              }),
               chunks.end());
  if (!chunks.empty()) CommonSimulation::GiveBack(client, chunks);
}

// A pass goes on reading what it is asked to give back.
bool PipelineSimulation::GiveBack(Client* client, const std::vector<ChunkId>& chunks) {
  Stage* const stage = FindStage(client->session);
  if (stage == nullptr) return CommonSimulation::GiveBack(client, chunks);
  std::vector<ChunkId> idle;
  for (const auto& [chunk, lease] : client->leases) {
    if (!chunks.empty() && !Names(chunks, chunk)) continue;
    const ChunkId id = chunk;
    const bool is_held = std::any_of(stage->passes.begin(), stage->passes.end(),
                                     [id](const Pass& pass) { return pass.held.count(id) != 0; });
    if (!is_held) idle.push_back(chunk);
  }
  return !idle.empty() && CommonSimulation::GiveBack(client, idle);
}

// Passes end half-way. Micro-batches stay readers.
bool PipelineSimulation::SettleClient(Client* client) {
  Stage* const stage = FindStage(client->session);
  if (stage != nullptr) stage->passes.clear();
  return GiveBack(client, {});
}

// Stages that are kept come back before.
void PipelineSimulation::ReadAll() {
  for (const size_t pipeline : std::set<size_t>(broken_)) {
    for (uint32_t number = 0; number < plans_[pipeline].stages; ++number) {
      const auto session = sessions_.find({pipeline, number});
      if (session != sessions_.end()) Feed(ClientGone{session->second});
    }
  }
  for (uint32_t left = config_.clients; left > 0; --left) Connect();
  Settle();
  reads_all_ = true;
  CommonSimulation::ReadAll();
}

}  // namespace memtide::sim

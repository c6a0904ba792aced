// The contents that the stages of pipelines must see, and how many there may be.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/state.h"
#include "tests/sim/pipelines/pipeline_simulation.h"

namespace memtide::sim {

PipelineSimulation::Stage* PipelineSimulation::FindStage(SessionId session) {
  const auto found = stages_.find(session);
  return found == stages_.end() ? nullptr : &found->second;
}

const PipelineSimulation::Stage* PipelineSimulation::Neighbour(const Stage& stage,
                                                               uint32_t number) const {
  const auto session = sessions_.find({stage.key.first, number});
  return session == sessions_.end() ? nullptr : &stages_.at(session->second);
}

PipelineSimulation::Pass* PipelineSimulation::FindPass(Stage* stage, PassKind kind) {
  for (Pass& pass : stage->passes) {
    if (pass.kind == kind) return &pass;
  }
  return nullptr;
}

ChunkId PipelineSimulation::Room(const Client& client, uint32_t weight, uint64_t version) const {
  return client.chunks.at(4 * weight + version % 2);
}

ChunkId PipelineSimulation::Gradient(const Client& client, uint32_t weight) const {
  return client.chunks.at(4 * weight + 2);
}

ChunkId PipelineSimulation::Shadow(const Client& client, uint32_t weight) const {
  return client.chunks.at(4 * weight + 3);
}

uint64_t PipelineSimulation::VersionFor(const Stage& stage, uint64_t micro_batch) const {
  const uint64_t batch = micro_batch / PlanOf(stage).micro_batches;
  return batch == 0 ? 0 : batch - 1;
}

Stamp PipelineSimulation::VersionStamp(Key key, uint32_t weight, uint64_t version) {
  std::vector<Stamp>& stamps = versions_[{key.first, key.second, weight}];
  if (stamps.empty()) stamps = {StepResult({key.first, key.second, weight}, /*number=*/0, 0)};
  while (stamps.size() <= version) {
    const uint64_t batch = stamps.size() - 1;
    const Stamp gradient = GradientStamp(key, weight, batch, plans_[key.first].micro_batches);
    stamps.push_back(StepResult({stamps.back(), gradient}, /*number=*/batch + 1, 0));
  }
  return stamps[version];
}

Stamp PipelineSimulation::GradientStamp(Key key, uint32_t weight, uint64_t batch,
                                        uint64_t micro_batches) const {
  return StepResult({key.first, key.second, weight, batch, micro_batches}, /*number=*/0, 0);
}

uint64_t PipelineSimulation::WorkOf(const StepCall& call) const {
  const auto stage = stages_.find(call.session);
  return stage == stages_.end() ? CommonSimulation::WorkOf(call) : stage->second.version + 1;
}

void PipelineSimulation::Before(const Event& event) {
  const bool is_restart = std::holds_alternative<Restore>(event);
  if (is_restart && readers_lost_ > 0) Hit(ClientProbe::kDaemonDiedWithReaders);
  readers_lost_ = 0;
}

void PipelineSimulation::OnFetch(Client* client, const FetchCall& call, const FetchReply& reply) {
  CommonSimulation::OnFetch(client, call, reply);
  Stage* const stage = FindStage(client->session);
  if (stage == nullptr || !verdict_.ok()) return;
  for (Pass& pass : stage->passes) {
    if (pass.fetch != call.call) continue;
    pass.fetch.reset();
    const Use use = pass.uses[pass.next++];
    pass.held.insert(use.chunk);
    if (pass.kind == PassKind::kBackward && reply.waited) Hit(ClientProbe::kBackwardWaited);
    return Compute(client, stage, pass, use);
  }
}

void PipelineSimulation::Compute(Client* client, Stage* stage, const Pass& pass, const Use& use) {
  const auto place = [client](ChunkId chunk) { return client->leases.at(chunk).place; };
  const auto write = [&](Stamp stamp) {
    node_.Write(place(use.chunk), stamp);
    client->contents[use.chunk] = {stamp};
  };
  const bool steps = pass.kind == PassKind::kStep;
  const uint32_t micro_batches = PlanOf(*stage).micro_batches;
  const uint64_t batch = pass.micro_batch / micro_batches;
  if (use.access == Access::kRead) {
    const uint64_t version = steps ? stage->version : VersionFor(*stage, pass.micro_batch);
    const Stamp expected = use.chunk == Gradient(*client, use.weight)
                               ? GradientStamp(stage->key, use.weight, version, micro_batches)
                               : VersionStamp(stage->key, use.weight, version);
    if (node_.Read(place(use.chunk)) == expected) return;
    return verdict_.Broken(absl::StrCat(
        "stage ", stage->key.second, " of pipeline ", stage->key.first, " reads weight ",
        use.weight, " for micro-batch ", pass.micro_batch, ", and not its version ", version));
  }
  if (pass.kind == PassKind::kFill) return write(VersionStamp(stage->key, use.weight, 0));
  if (pass.kind == PassKind::kBackward) {
    return write(
        GradientStamp(stage->key, use.weight, batch, pass.micro_batch % micro_batches + 1));
  }
  const Stamp newest = node_.Read(place(Room(*client, use.weight, stage->version)));
  const Stamp gradient = node_.Read(place(Gradient(*client, use.weight)));
  write(StepResult({newest, gradient}, stage->version + 1, 0));
}

void PipelineSimulation::TakeResults(Client* client, const Held& held) {
  Stage* const stage = FindStage(client->session);
  if (stage == nullptr) return CommonSimulation::TakeResults(client, held);
  const ChunkId written = held.writes.at(0);
  client->contents[written] = {StepResult(held.read, held.work, 0)};
  const auto at = std::find(client->chunks.begin(), client->chunks.end(), written);
  stage->made.insert(static_cast<uint32_t>(at - client->chunks.begin()) / 4);
}

void PipelineSimulation::OnCommit(Client* client, const CommitCall& call) {
  CommonSimulation::OnCommit(client, call);
  Stage* const stage = FindStage(client->session);
  if (stage != nullptr) SetVersion(client, stage, call.step);
}

void PipelineSimulation::SetVersion(Client* client, Stage* stage, uint64_t version) {
  stage->version = version;
  stage->steps = false;
  switch (PlanOf(*stage).way) {
    case StepWay::kInPlace:
      return Hit(ClientProbe::kSteppedInPlace);
    case StepWay::kIntoRoom:
      return Hit(ClientProbe::kSteppedIntoRoom);
    case StepWay::kIntoShadow:
      return Hit(ClientProbe::kSteppedIntoShadow);
    case StepWay::kAfterDiscard:
      return Hit(ClientProbe::kSteppedAfterDiscard);
  }
}

void PipelineSimulation::OnRefusal(Client* client, const Waiting& waiting, absl::StatusCode code) {
  Stage* const stage = FindStage(client->session);
  if (stage == nullptr) return CommonSimulation::OnRefusal(client, waiting, code);
  if (const auto* const fetch = std::get_if<FetchCall>(&waiting.event)) {
    for (Pass& pass : stage->passes) {
      if (pass.fetch != fetch->call) continue;
      pass.fetch.reset();
      pass.next = 0;
    }
  } else if (std::holds_alternative<DiscardCall>(waiting.event)) {
    (stage->steps ? stage->has_discarded : stage->resumes) = !stage->steps;
  }
}

void PipelineSimulation::EndClient(SessionId session) {
  const Stage* const stage = FindStage(session);
  const Client* const client = Find(session);
  if (stage == nullptr) return CommonSimulation::EndClient(session);
  if (stage->forwards > stage->backwards) {
    Hit(ClientProbe::kDiedWithReaders);
    ++readers_lost_;
  }
  const Key key = stage->key;
  if (client != nullptr && client->open && plans_[key.first].keeps()) {
    Client& left = left_[key] = *client;
    for (uint32_t at = 0; at < left.chunks.size(); ++at) {
      Content& content = left.contents[left.chunks[at]];
      const auto lease = left.leases.find(left.chunks[at]);
      // The rooms have versions. A gradient, and what is not committed, is not read again.
      if (at % 4 >= 2) content = {kZeros, /*defined=*/false};
      if (lease != left.leases.end() && lease->second.access == Access::kWrite) content.torn = true;
    }
    left.leases.clear();
  }
  stages_.erase(session);
  sessions_.erase(key);
  const auto next = sessions_.lower_bound({key.first, 0});
  const bool is_last = next == sessions_.end() || next->first.first != key.first;
  is_last ? void(broken_.erase(key.first)) : void(broken_.insert(key.first));
  CommonSimulation::EndClient(session);
}

// A stage goes on from the last step that all stages have committed, with both versions.
void PipelineSimulation::OnOpen(Client* client, const OpenReply& reply) {
  Stage* const stage = FindStage(client->session);
  if (stage == nullptr) return;
  const auto left = left_.find(stage->key);
  if (left != left_.end()) {
    client->chunks = left->second.chunks;
    client->contents = left->second.contents;
    client->step = left->second.step;
    stage->resumes = !client->chunks.empty();
  }
  if (reply.committed_step != client->step) {
    return verdict_.Broken(absl::StrCat("stage ", stage->key.second, " goes on from step ",
                                        reply.committed_step, ", and has committed ",
                                        client->step));
  }
  stage->version = client->step;
  stage->is_filled = stage->version > 0;
  stage->forwards = stage->backwards = stage->version * PlanOf(*stage).micro_batches;
  if (stage->version >= 2) Hit(ClientProbe::kResumed);
}

void PipelineSimulation::After() {
  CommonSimulation::After();
  for (const auto& [session, stage] : stages_) {
    const Client* const client = Find(session);
    if (client != nullptr && client->open && verdict_.ok()) CheckReaders(*client, stage);
  }
  if (verdict_.ok()) CheckSteps();
  if (verdict_.ok() && !reads_all_) CheckContents();
}

// The versions that micro-batches read again, and that the next ones will read, are in their rooms.
void PipelineSimulation::CheckReaders(const Client& client, const Stage& stage) {
  if (!stage.is_filled) return;
  std::set<uint64_t> versions = {stage.version};
  for (uint64_t micro_batch = stage.backwards; micro_batch < stage.forwards; ++micro_batch) {
    versions.insert(VersionFor(stage, micro_batch));
  }
  // The next step makes one of it and of the gradient at the version before.
  if (stage.version > 0 && !stage.steps) versions.insert(stage.version - 1);
  for (const uint64_t version : versions) {
    for (uint32_t weight = 0; weight < PlanOf(stage).weights; ++weight) {
      const Content& content = client.contents.at(Room(client, weight, version));
      const Stamp expected = VersionStamp(stage.key, weight, version);
      if (content.defined && !content.torn && content.stamp == expected) continue;
      return verdict_.Broken(absl::StrCat("version ", version, " of weight ", weight, " of stage ",
                                          stage.key.second, " of pipeline ", stage.key.first,
                                          " has readers, and is no more"));
    }
  }
  const bool computes = std::any_of(held_.begin(), held_.end(), [&](const auto& part) {
    return part.first.first == client.session;
  });
  const Pass* const forward = FindPass(const_cast<Stage*>(&stage), PassKind::kForward);
  if (computes && forward != nullptr && !forward->held.empty()) {
    Hit(ClientProbe::kReadWhileStepped);
  }
}

// All stages of a named job are at one step, whatever has died.
void PipelineSimulation::CheckSteps() {
  std::map<size_t, uint64_t> steps;
  const auto check = [&](Key key, uint64_t step) {
    if (!plans_[key.first].keeps() || steps.emplace(key.first, step).first->second == step) return;
    verdict_.Broken(absl::StrCat("stage ", key.second, " of pipeline ", key.first, " is at step ",
                                 step, ", and another one at step ", steps[key.first]));
  };
  for (const auto& [key, left] : left_) {
    if (sessions_.count(key) == 0) check(key, left.step);
  }
  for (const auto& [session, stage] : stages_) {
    const Client* const client = Find(session);
    if (client != nullptr && client->open) check(stage.key, client->step);
  }
}

// There are two contents of each weight. Only a step into a shadow chunk has a third one.
void PipelineSimulation::CheckContents() {
  InspectCall inspect;
  inspect.call = CallId(next_call_++);
  inspect.max_chunks = 4096;
  std::vector<Effect> effects;
  engine_->Handle(now_, inspect, &effects);
  const auto& seen = std::get<InspectReply>(std::get<Reply>(effects.front()).value);
  std::set<ChunkId> there;
  for (const ChunkInfo& chunk : seen.chunks) {
    if (chunk.on_device || chunk.on_host || chunk.on_ssd) there.insert(chunk.chunk);
  }
  for (const auto& [session, stage] : stages_) {
    const Client* const client = Find(session);
    if (client == nullptr || !client->open || stage.resumes || Waits<DiscardCall>(session))
      continue;
    const uint32_t most = PlanOf(stage).way == StepWay::kIntoShadow && stage.steps ? 3 : 2;
    for (uint32_t weight = 0; 4 * weight < client->chunks.size(); ++weight) {
      const size_t contents = there.count(Room(*client, weight, 0)) +
                              there.count(Room(*client, weight, 1)) +
                              there.count(Shadow(*client, weight));
      if (contents == 2) Hit(ClientProbe::kTwoContents);
      if (contents == 3) Hit(ClientProbe::kThreeContents);
      if (contents <= most) continue;
      return verdict_.Broken(absl::StrCat("there are ", contents, " contents of weight ", weight,
                                          " of stage ", stage.key.second, " of pipeline ",
                                          stage.key.first, "; at most ", most));
    }
  }
}

}  // namespace memtide::sim

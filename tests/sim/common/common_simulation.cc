#include "tests/sim/common/common_simulation.h"

#include "absl/strings/str_cat.h"

namespace memtide::sim {

ClientConfig WithCommonContents(uint64_t seed) {
  Random random(seed ^ 0x636f6d6d6f6e);
  ClientConfig config;
  config.seed = seed;
  config.write_percent = 40;
  config.alike_percent = 85;
  config.release_percent = 80;
  config.uncomputed_percent = 20;
  config.clients = random.Between(2, 4);
  config.chunks = random.Between(2, 12);
  config.contents = random.Between(1, 6);
  config.elastic = random.Percent(70);
  if (config.elastic) {
    config.ssd_slots = config.clients * (config.chunks + 2) + random.Between(8, 60);
    config.host_slots = config.clients * 12 + random.Between(1, 60);
  } else {
    // Each script asks for its share, and some memory is left for what they have in common.
    config.host_slots = config.clients * (config.chunks + 6) + random.Between(0, 30);
  }
  config.stamps_of_digest = random.Percent(30) ? random.Between(2, 4) : 1;
  // A script leases at the device, too, where a common content has a copy for each of them.
  if (random.Percent(40)) config.device_slots = config.clients * 4 + random.Between(1, 16);
  if (random.Percent(50)) config.repeats_percent = random.Between(20, 100);
  config.hostile = random.Percent(15);
  config.fail_region_percent = random.Percent(20) ? 30 : 0;
  config.weights = {{ClientOp::kComplete, 60}, {ClientOp::kTick, 12},  {ClientOp::kConnect, 3},
                    {ClientOp::kFetch, 25},    {ClientOp::kWrite, 25}, {ClientOp::kRelease, 30},
                    {ClientOp::kOffer, 30},    {ClientOp::kPart, 10},  {ClientOp::kEndPart, 14},
                    {ClientOp::kCommit, 6},    {ClientOp::kEvict, 4},  {ClientOp::kFree, 2},
                    {ClientOp::kDiscard, 2},   {ClientOp::kDie, 3},    {ClientOp::kClose, 1},
                    {ClientOp::kHang, 1}};
  DrawRun({ClientOp::kPart, ClientOp::kCommit, ClientOp::kFree, ClientOp::kDiscard}, &random,
          &config);
  // Drawn apart from the others, so that seeds without duplicates are as they were before.
  Random of_duplicates(seed ^ 0x6475706c);
  if (of_duplicates.Percent(40)) {
    config.weights[ClientOp::kDuplicate] = of_duplicates.Between(2, 12);
    if (config.elastic && of_duplicates.Percent(60)) config.host_slots += 60;
  }
  return config;
}

ClientConfig WithQuotas(uint64_t seed) {
  ClientConfig config = WithCommonContents(seed);
  Random random(seed ^ 0x71756f746173);
  config.clients = random.Between(2, 6);
  config.other_user_percent = 50;
  config.ssd_slots += config.elastic ? random.Between(0, 40) : 0;
  config.weights[ClientOp::kSetQuotas] = random.Between(1, 12);
  config.weights[ClientOp::kEndJob] = random.Between(1, 4);
  config.weights[ClientOp::kConnect] = 12;
  return config;
}

CommonSimulation::CommonSimulation(const ClientConfig& config, uint64_t stream, std::ostream* echo)
    : ClientSimulation(config, stream, echo) {}

ClientOutcome CommonSimulation::Run(const ClientConfig& config, std::ostream* echo) {
  return CommonSimulation(config, /*stream=*/0x636f6d6f7073, echo).RunAll();
}

void CommonSimulation::Connect() {
  if (clients_.size() >= config_.clients) return;
  Script script;
  script.uid += random_.Percent(config_.other_user_percent);
  // The first user is in a group, which may have a quota, too.
  if (script.uid == 1000) script.groups = {50};
  OpenCall open;
  open.elastic = config_.elastic;
  if (!config_.elastic) open.host_share = MiB(2) * (config_.chunks + 4);
  if (config_.device_slots > 0) {
    open.device_memory = MemoryKind::kSharedMemory;
    open.device_share = MiB(2) * 4;
  }
  ConnectAs(script, open);
}

Stamp CommonSimulation::AlikeStamp(const Script& script, ChunkId chunk) {
  return random_.Below(config_.contents);
}

bool CommonSimulation::IsBusy(const Script& script, ChunkId chunk) const {
  const bool is_held = std::any_of(held_.begin(), held_.end(), [&](const auto& part) {
    return part.first.first == script.session && Names(part.second.writes, chunk);
  });
  return is_held || ClientSimulation::IsBusy(script, chunk) ||
         Waits<CommitCall>(script.session, [&](const CommitCall& commit) {
           return Names(commit.chunks, chunk) || Names(commit.shadows, chunk);
         });
}

void CommonSimulation::Offer(Script* script) {
  OfferCall offer;
  offer.session = script->session;
  for (const ChunkId chunk : script->chunks) {
    if (random_.Percent(80) && script->contents.count(chunk) != 0) offer.chunks.push_back(chunk);
  }
  if (offer.chunks.empty()) return;
  if (random_.Percent(20)) offer.deadline = config_.limits.max_wait / 2;
  offer.repeats = random_.Percent(config_.repeats_percent);
  if (offer.repeats) script->repeated.insert(offer.chunks.begin(), offer.chunks.end());
  Ask(offer);
}

void CommonSimulation::Duplicate(Script* script) {
  if (script->chunks.size() > 4 * config_.chunks) return;
  DuplicateCall call;
  call.session = script->session;
  call.request_id = next_request_++;
  call.copies = random_.Between(1, 3);
  for (const ChunkId chunk : script->chunks) {
    if (random_.Percent(30) && script->contents.count(chunk) != 0 && !IsBusy(*script, chunk)) {
      call.chunks.push_back(chunk);
    }
  }
  if (call.chunks.empty()) return;
  if (random_.Percent(20)) call.deadline = config_.limits.max_wait / 2;
  // A chunk that is in use is refused.
  if (random_.Percent(80)) GiveBack(script, call.chunks);
  Ask(call);
}

void CommonSimulation::OnDuplicate(Script* script, const DuplicateCall& call,
                                   const AllocateReply& reply) {
  if (reply.chunks.size() != call.chunks.size() * call.copies) {
    return verdict_.Broken("another number of duplicates");
  }
  Hit(ClientProbe::kDuplicated);
  for (size_t i = 0; i < reply.chunks.size(); ++i) {
    const ChunkId source = call.chunks[i % call.chunks.size()], duplicate = reply.chunks[i];
    const auto content = script->contents.find(source);
    if (content == script->contents.end()) {
      return verdict_.Broken(absl::StrCat("duplicated a freed chunk: ", ToText(Event(call))));
    }
    content->second.shared = 1;
    script->contents[duplicate] = Content(content->second);
    script->chunks.push_back(duplicate);
  }
}

void CommonSimulation::StartPart(Script* script) {
  StepCall call;
  call.session = script->session;
  std::vector<ChunkId> chunks = script->chunks;
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    std::swap(chunks[i], chunks[i + random_.Below(static_cast<uint32_t>(chunks.size() - i))]);
  }
  chunks.resize(std::min<size_t>(chunks.size(), random_.Between(2, 4)));
  call.chunks = chunks;
  call.reads = random_.Below(static_cast<uint32_t>(chunks.size()));
  call.part = 1 + random_.Below(4);
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    const auto content = script->contents.find(chunks[i]);
    if (content == script->contents.end() || IsBusy(*script, chunks[i])) return;
    if (i < call.reads && !content->second.defined) return;
  }
  for (uint32_t i = call.reads; i < chunks.size(); ++i) {
    Content& content = script->contents.at(chunks[i]);
    // It may be shared before the offer that waits is answered, or when the engine repeats one.
    const bool may_be_shared = content.shared != 0 || Waits<OfferCall>(script->session) ||
                               Waits<DuplicateCall>(script->session) ||
                               script->repeated.count(call.chunks[i]) > 0;
    if (!may_be_shared) continue;
    Hit(ClientProbe::kWrittenByPart);
    // The chunk leaves what it shares with the call, not when the part begins.
    content = {kZeros, /*defined=*/false};
  }
  Ask(call);
}

void CommonSimulation::Commit(Script* script) {
  if (script->chunks.size() < 2) return;
  CommitCall call;
  call.session = script->session;
  call.step = script->step + 1;
  for (size_t i = 0; i + 1 < script->chunks.size(); i += 2) {
    const ChunkId chunk = script->chunks[i], shadow = script->chunks[i + 1];
    if (script->contents.count(chunk) == 0 || script->contents.count(shadow) == 0) continue;
    if (IsBusy(*script, chunk) || IsBusy(*script, shadow)) continue;
    if (!script->contents.at(shadow).defined || random_.Percent(40)) continue;
    call.chunks.push_back(chunk);
    call.shadows.push_back(shadow);
  }
  if (call.chunks.empty()) return;
  call.keep_old_content = random_.Percent(40);
  Ask(call);
}

void CommonSimulation::OnOffer(Script* script, const OfferCall& call, const OfferReply& reply) {
  for (const uint32_t number : reply.shared) {
    const auto content = script->contents.find(call.chunks.at(number));
    if (content == script->contents.end()) continue;
    content->second.shared = 1;
    Hit(ClientProbe::kShared);
  }
  if (!reply.leased.empty()) Hit(ClientProbe::kLeased);
}

void CommonSimulation::TakeResults(Script* script, const Held& held) {
  for (size_t i = 0; i < held.writes.size(); ++i) {
    const auto content = script->contents.find(held.writes[i]);
    if (content == script->contents.end()) continue;
    content->second = {StepResult(held.read, held.work, i)};
  }
}

// Uses ids of other scripts, of any user, and of entries whose ids no script got.
void CommonSimulation::Hostile(Script* script) {
  ChunkId other = AnyChunkOfAll();
  if (random_.Percent(30)) {
    other = ChunkId(uint64_t{1 + random_.Below(6)} << 32 | random_.Below(40));
  }
  const std::vector<ChunkId> named = random_.Percent(50)
                                         ? std::vector<ChunkId>{other}
                                         : std::vector<ChunkId>{Pick(script->chunks), other};
  const bool duplicates = config_.weights.count(ClientOp::kDuplicate) != 0;
  switch (random_.Below(duplicates ? 6 : 5)) {
    case 5:
      return Ask(DuplicateCall{CallId(), script->session, next_request_++, named});
    case 0: {
      const Access access = random_.Percent(50) ? Access::kWrite : Access::kRead;
      return FetchToHost(script->session, access, named);
    }
    case 1:
      return Ask(FreeCall{CallId(), script->session, next_request_++, named});
    case 2:
      return Ask(OfferCall{CallId(), script->session, named});
    case 3:
      return Ask(DiscardCall{CallId(), script->session, next_request_++, named});
    default:
      return CommitOne(*script, other, Pick(script->chunks));
  }
}

}  // namespace memtide::sim

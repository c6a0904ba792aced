// How a simulation ends: whatever waits must end, every chunk is read once more, and all memory
// must come back.
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/sim/fakes/clients.h"
#include "tests/sim/simulation.h"

namespace memtide::sim {
namespace {

// How long settling may take in simulated time: longer than a hung session's lease, than an Open
// waits, and than it takes to fill each slot of a large share, one after another.
constexpr int kSettleRounds = 60, kMostSettleRounds = 250;
constexpr Duration kSettleTick = std::chrono::milliseconds(50);

}  // namespace

bool Simulation::SettleOnce() {
  bool idle = true;
  for (size_t left = node_.work().size(); left > 0 && !node_.work().empty(); --left) {
    const Work& work = node_.work().front();
    // The scrubber goes on as long as there is anything on SSD.
    const bool scrubs =
        work.kind == Work::Kind::kTransfer && work.transfer.kind == StartTransfer::Kind::kVerifySsd;
    Feed(node_.Complete(
        0, absl::OkStatus(),
        fault_injector_ == nullptr ? InjectedFault::kNone : fault_injector_->OnComplete(work)));
    idle = idle && scrubs;
  }
  for (const SessionId session : Sessions(true)) {
    const std::set<RegionId> back = model_.state().FindSession(session)->asked_back;
    if (!back.empty()) {
      Ask(ReturnRegionsCall{CallId(), session, {back.begin(), back.end()}});
      idle = false;
    }
    for (const PartKey& part : PartsOf(session)) {
      EndPart(part, /*computed=*/part.second % 3 != 0, part.second);
      idle = false;
    }
    std::optional<Event> release =
        MakeRelease(model_.state(), session, NewRequestId(), {}, SIZE_MAX / 2);
    if (!release) continue;
    Ask(std::move(*release));
    idle = false;
  }
  return idle;
}

void Simulation::Settle() {
  for (int round = 0; round < kMostSettleRounds && verdict_.ok(); ++round) {
    const bool idle = SettleOnce();
    if (idle && model_.state().calls.empty() && model_.SharesAreReached()) return;
    PassTime(kSettleTick);
  }
  if (!verdict_.ok()) return;
  for (const auto& [id, call] : model_.state().calls) {
    return verdict_.Broken(
        absl::StrCat("nothing is in its way, and it waits: ", ToText(call.event)));
  }
  if (!model_.SharesAreReached()) return verdict_.Broken("a share shrank, and its memory stays");
  if (!node_.work().empty()) verdict_.Broken("nothing is asked for, and work goes on");
}

void Simulation::ReadAll() {
  if (!verdict_.ok()) return;
  for (const SessionId session : Sessions(true)) {
    std::vector<ChunkId> chunks;
    for (const auto& [chunk, state] : model_.state().chunks) {
      if (model_.state().Owns(session, chunk)) chunks.push_back(chunk);
    }
    for (const ChunkId chunk : chunks) {
      FetchCall fetch;
      fetch.session = session;
      fetch.tier = config_.device_slots != 0 && (chunk.value() + config_.seed) % 2 == 0
                       ? Tier::kDevice
                   : config_.host_slots != 0 ? Tier::kHost
                                             : Tier::kDevice;
      fetch.chunks = {chunk};
      Ask(fetch);
      Settle();
      if (!verdict_.ok()) return;
    }
  }
}

void Simulation::EndAll() {
  if (!verdict_.ok()) return;
  for (const auto& [id, session] : std::map(model_.state().sessions)) {
    if (!session.gone && session.phase != Phase::kEnding && session.phase != Phase::kEnded) {
      Feed(ClientGone{id});
    }
  }
  for (int round = 0; round < kSettleRounds && verdict_.ok(); ++round) {
    SettleOnce();
    PassTime(kSettleTick);
  }
  Ask(InspectCall{});
  if (!verdict_.ok()) return;
  for (const PoolUsage& pool : model_.state().pools) {
    if (pool.free != pool.capacity) {
      return verdict_.Broken(absl::StrCat("everybody left, and the ", PoolName(pool.pool),
                                          " pool lacks ", FormatBytes(pool.capacity - pool.free)));
    }
  }
  if (!model_.state().chunks.empty() || !model_.state().calls.empty() || !node_.regions().empty() ||
      !node_.stores().empty()) {
    verdict_.Broken("everybody left, and something stayed");
  }
}

}  // namespace memtide::sim

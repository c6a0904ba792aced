// The operations of clients.
#include "tests/sim/clients/client_simulation.h"

namespace memtide::sim {

void ClientSimulation::Step() {
  uint32_t total = 0;
  for (const auto& [operation, weight] : config_.weights) total += weight;
  uint32_t at = random_.Below(total);
  auto chosen = config_.weights.begin();
  while (at >= chosen->second) at -= (chosen++)->second;
  const ClientOp operation = chosen->first;
  if (operation == ClientOp::kComplete) return Complete();
  if (operation == ClientOp::kTick) {
    return PassTime(std::chrono::milliseconds(random_.Between(1, 100)));
  }
  if (operation == ClientOp::kConnect) return Connect();
  if (operation == ClientOp::kRestart) return Restart();
  if (operation == ClientOp::kHostMemory) {
    return Feed(HostMemory{MiB(2) * random_.Below(3 * config_.host_reserve + 1)});
  }
  if (operation == ClientOp::kSetQuotas) return SetQuotas();
  if (operation == ClientOp::kEndJob) return EndAnyJob();
  std::vector<SessionId> ids;
  for (const auto& [id, client] : clients_) {
    if (client.open && !client.hung) ids.push_back(id);
  }
  if (!ids.empty()) StepClient(Find(Pick(ids)), operation);
}

void ClientSimulation::StepClient(Client* client, ClientOp operation) {
  if (client->chunks.empty()) {
    if (client->allocating) return;
    client->allocating = true;
    return Ask(AllocateCall{CallId(), client->session, next_request_++, config_.chunks});
  }
  switch (operation) {
    case ClientOp::kFetch:
      return Fetch(client);
    case ClientOp::kWrite:
      return Write(client);
    case ClientOp::kRelease:
      return Release(client);
    case ClientOp::kOffer:
      return Offer(client);
    case ClientOp::kDuplicate:
      return Duplicate(client);
    case ClientOp::kPart:
      return StartPart(client);
    case ClientOp::kEndPart:
      return EndPart(client);
    case ClientOp::kCommit:
      return Commit(client);
    case ClientOp::kEvict:
      return Evict(client);
    case ClientOp::kFree:
      return Ask(FreeCall{CallId(), client->session, next_request_++, {Pick(client->chunks)}});
    case ClientOp::kDiscard:
      return Discard(client);
    case ClientOp::kDie:
      return Die(client);
    case ClientOp::kClose:
      return Ask(CloseCall{CallId(), client->session});
    case ClientOp::kHang:
      Hit(ClientProbe::kHung);
      client->hung = true;
      return;
    default:
      return Hostile(client);
  }
}

// Regions for what is common fail at times, as where the machine has no memory.
void ClientSimulation::Complete() {
  if (node_.work().empty()) return;
  const size_t index = random_.Below(static_cast<uint32_t>(node_.work().size()));
  const Work& work = node_.work()[index];
  absl::Status status;
  if (work.kind == Work::Kind::kMakeRegion && node_.regions().at(work.region).read_only &&
      random_.Percent(config_.fail_region_percent)) {
    Hit(ClientProbe::kNoMemory);
    status = absl::ResourceExhaustedError("no memory");
  }
  const bool uses_disk =
      work.kind == Work::Kind::kTransfer &&
      (ReadsSsd(work.transfer) || work.transfer.kind == StartTransfer::Kind::kHostToSsd);
  if (config_.fail_disk_percent > 0 && uses_disk && random_.Percent(config_.fail_disk_percent)) {
    Hit(ClientProbe::kDiskFailed);
    status = absl::UnavailableError("the disk failed");
  }
  Feed(node_.Complete(index, std::move(status)));
}

void ClientSimulation::ConnectAs(Client client, OpenCall open) {
  const SessionId session(next_session_++);
  client.session = session;
  client.renewed = now_;
  clients_[session] = client;
  Feed(ClientConnected{session, client.uid, 1, client.groups});
  open.session = session;
  open.chunk_size = MiB(2);
  Ask(std::move(open));
}

ChunkId ClientSimulation::AnyChunkOfAll() {
  std::vector<ChunkId> all;
  for (const auto& [id, client] : clients_) {
    all.insert(all.end(), client.chunks.begin(), client.chunks.end());
  }
  return Pick(all);
}

bool ClientSimulation::IsBusy(const Client& client, ChunkId chunk) const {
  return Waits<StepCall>(client.session,
                         [&](const StepCall& step) { return Names(step.chunks, chunk); });
}

void ClientSimulation::Fetch(Client* client) {
  FetchCall fetch;
  fetch.session = client->session;
  fetch.tier = config_.device_slots != 0 && random_.Percent(40) ? Tier::kDevice : Tier::kHost;
  fetch.access = random_.Percent(config_.write_percent) ? Access::kWrite : Access::kRead;
  fetch.chunks = {Pick(client->chunks)};
  const ChunkId second = Pick(client->chunks);
  if (random_.Percent(30) && second != fetch.chunks[0]) fetch.chunks.push_back(second);
  fetch.wait = !random_.Percent(10);
  if (random_.Percent(20)) {
    const ChunkId released = Pick(client->chunks);
    if (client->leases.erase(released) != 0) fetch.releases = {released};
  }
  for (const ChunkId chunk : fetch.chunks) {
    const auto lease = client->leases.find(chunk);
    if (fetch.access == Access::kWrite && lease != client->leases.end() &&
        IsCommon(lease->second.place)) {
      Hit(ClientProbe::kLeftBehind);
    }
  }
  Ask(fetch);
}

void ClientSimulation::FetchToHost(SessionId session, Access access, std::vector<ChunkId> chunks) {
  FetchCall fetch;
  fetch.session = session;
  fetch.tier = Tier::kHost;
  fetch.access = access;
  fetch.chunks = std::move(chunks);
  Ask(fetch);
}

// Clients fill chunks alike, mostly.
void ClientSimulation::Write(Client* client) {
  std::vector<ChunkId> writable;
  for (const auto& [chunk, lease] : client->leases) {
    if (lease.access == Access::kWrite && !IsBusy(*client, chunk)) writable.push_back(chunk);
  }
  if (writable.empty()) return;
  const ChunkId chunk = Pick(writable);
  const MemoryPlace place = client->leases.at(chunk).place;
  if (IsCommon(place)) return verdict_.Broken("a lease for writing is where nobody may write");
  const bool alike = random_.Percent(config_.alike_percent);
  const Stamp stamp = alike ? AlikeStamp(*client, chunk) : 1'000'000 + next_stamp_++;
  node_.Write(place, stamp);
  client->contents[chunk] = {stamp};
  if (random_.Percent(config_.release_percent)) Release(client);
}

bool ClientSimulation::GiveBack(Client* client, const std::vector<ChunkId>& chunks) {
  ReleaseCall release;
  release.session = client->session;
  release.request_id = next_request_++;
  for (const auto& [chunk, lease] : client->leases) {
    if (chunks.empty() || Names(chunks, chunk)) release.chunks.push_back(chunk);
  }
  if (release.chunks.empty()) return false;
  for (const ChunkId chunk : release.chunks) client->leases.erase(chunk);
  Ask(release);
  return true;
}

void ClientSimulation::Release(Client* client) {
  std::vector<ChunkId> some;
  if (!client->leases.empty() && random_.Percent(30)) some = {client->leases.begin()->first};
  GiveBack(client, some);
}

void ClientSimulation::EndPart(PartKey key, bool computed) {
  if (computed) node_.ComputePart(key);
  const auto found = held_.find(key);
  if (found != held_.end()) {
    const Held held = found->second;
    held_.erase(found);
    node_.EndPart(key);
    Client* const client = Find(key.first);
    computed ? TakeResults(client, held) : Undefine(client, held.writes);
  }
  Ask(EndPartCall{CallId(), key.first, key.second, computed, 0});
}

void ClientSimulation::EndPart(Client* client) {
  const SessionId id = client->session;
  std::vector<PartKey> keys;
  for (const auto& [key, held] : held_) {
    if (key.first == id) keys.push_back(key);
  }
  if (keys.empty()) {
    if (!config_.wrong_ends || !random_.Percent(5)) return;
    const uint64_t number = 1 + random_.Below(4);
    return EndPart({id, number}, random_.Percent(50));
  }
  const PartKey key = Pick(keys);
  EndPart(key, !random_.Percent(config_.uncomputed_percent));
  if (config_.wrong_ends && random_.Percent(10) && verdict_.ok() && Find(id) != nullptr) {
    EndPart(key, random_.Percent(50));
  }
}

void ClientSimulation::Evict(Client* client) {
  const ChunkId chunk = Pick(client->chunks);
  client->leases.erase(chunk);
  const Tier tier = config_.ssd_slots != 0 && random_.Percent(70) ? Tier::kSsd : Tier::kHost;
  Ask(EvictCall{CallId(), client->session, tier, {chunk}});
}

void ClientSimulation::Discard(Client* client) {
  const ChunkId chunk = Pick(client->chunks);
  if (!MayDiscard(*client, chunk)) return;
  Ask(DiscardCall{CallId(), client->session, next_request_++, {chunk}});
}

void ClientSimulation::Spoil(const Client& client) {
  for (const auto& [chunk, lease] : client.leases) {
    if (lease.access == Access::kWrite) node_.Write(lease.place, node_.NewPoison());
  }
}

void ClientSimulation::Die(Client* client) {
  const SessionId id = client->session;
  if (Waits<OfferCall>(id)) Hit(ClientProbe::kDiedInOffer);
  for (const auto& [part, held] : held_) {
    if (part.first != id) continue;
    Hit(ClientProbe::kDiedInPart);
    if (random_.Percent(50)) node_.ComputePart(part);
  }
  Spoil(*client);
  Feed(ClientGone{id});
}

void ClientSimulation::CommitOne(const Client& client, ChunkId chunk, ChunkId shadow) {
  CommitCall call;
  call.session = client.session;
  call.step = client.step + 1;
  call.chunks = {chunk};
  call.shadows = {shadow};
  Ask(call);
}

}  // namespace memtide::sim

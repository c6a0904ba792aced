// The contents that each client must see.
#include "absl/strings/str_cat.h"
#include "tests/sim/clients/client_simulation.h"
#include "tests/sim/oracle/state.h"

namespace memtide::sim {
namespace {

using Code = absl::StatusCode;

bool SamePlace(MemoryPlace a, MemoryPlace b) {
  return a.region == b.region && a.offset == b.offset;
}

}  // namespace

bool ClientSimulation::IsCommon(const MemoryPlace& place) const {
  return node_.regions().at(place.region).read_only;
}

uint64_t ClientSimulation::WorkOf(const StepCall& call) const {
  return call.contents.has_value() ? call.contents->work.high * 1000 + call.contents->work.low
                                   : (uint64_t{1} << 40) + call.call.value();
}

void ClientSimulation::Undefine(Client* client, const std::vector<ChunkId>& chunks) {
  for (const ChunkId chunk : chunks) {
    const auto content = client->contents.find(chunk);
    if (content != client->contents.end()) content->second = {kZeros, /*defined=*/false};
  }
}

void ClientSimulation::EndClient(SessionId session) {
  for (auto part = held_.begin(); part != held_.end();) {
    if (part->first.first == session) {
      node_.EndPart(part->first);
      part = held_.erase(part);
    } else {
      ++part;
    }
  }
  clients_.erase(session);
}

void ClientSimulation::Observe(const Effect& effect) {
  if (const auto* reply = std::get_if<Reply>(&effect)) {
    ObserveReply(*reply);
  } else if (const auto* revoke = std::get_if<Revoke>(&effect)) {
    revokes_.push_back(*revoke);
    const Client* const client = Find(revoke->session);
    if (client == nullptr || config_.hostile) return;
    for (const ChunkId chunk : revoke->chunks) {
      if (!Names(client->chunks, chunk)) {
        verdict_.Broken(absl::StrCat(ToText(effect), ": the id is another client's"));
      }
    }
  } else if (const auto* send = std::get_if<SendRegion>(&effect)) {
    const Client* const client = Find(send->session);
    if (client != nullptr && node_.regions().at(send->region).uid != client->uid) {
      verdict_.Broken(absl::StrCat(ToText(effect), ": it is another user's"));
    }
    sent_.insert({send->session, send->region});
  } else if (const auto* close = std::get_if<CloseSession>(&effect)) {
    const Client* const client = Find(close->session);
    // An administrator may end it.
    if (client != nullptr && !client->hung && close->reason.code() != Code::kAborted) {
      verdict_.Broken(absl::StrCat(ToText(effect), ": it lives"));
    }
    EndClient(close->session);
  } else if (const auto* lost = std::get_if<JobLost>(&effect)) {
    verdict_.Broken(absl::StrCat("the job is lost: ", lost->why.ToString()));
  } else if (const auto* step = std::get_if<StartStep>(&effect)) {
    if (step->work != nullptr && !step->work->copies.empty()) Hit(ClientProbe::kCopied);
    const bool shares = step->contents != nullptr && step->contents->hashes.empty();
    const bool is_asked = std::any_of(calls_.begin(), calls_.end(), [](const auto& entry) {
      return std::holds_alternative<OfferCall>(entry.second.event);
    });
    if (shares && !is_asked) Hit(ClientProbe::kSharedByItself);
  }
}

// Whether a call may get the error, of whatever client the cause is.
bool ClientSimulation::IsPermitted(const Waiting& waiting, Code code) {
  if (code == Code::kInternal || code == Code::kUnknown) return false;
  if (config_.hostile) return true;
  if (std::holds_alternative<EndJobCall>(waiting.event)) return code == Code::kNotFound;
  const SessionId* const session = SessionOf(waiting.event);
  const Client* const client = session == nullptr ? nullptr : Find(*session);
  if (code == Code::kUnauthenticated) return client == nullptr;
  if (code == Code::kNotFound || code == Code::kDataLoss) {
    const std::vector<ChunkId>* const chunks = ChunksOf(waiting.event);
    if (chunks == nullptr || client == nullptr) return client == nullptr;
    if (code == Code::kDataLoss && !config_.keeps) return false;
    // One of several ranks may have freed a chunk, and then all are refused.
    if (std::holds_alternative<CommitCall>(waiting.event)) return true;
    return std::any_of(chunks->begin(), chunks->end(), [&](ChunkId chunk) {
      const auto content = client->contents.find(chunk);
      if (content == client->contents.end() || Names(freed_now_, chunk)) return true;
      // A part that was to write a torn chunk may have ended with its session.
      return code == Code::kDataLoss && (content->second.torn || !content->second.defined);
    });
  }
  if (code == Code::kFailedPrecondition) return !std::holds_alternative<ReleaseCall>(waiting.event);
  // A number that is in use, or too many duplicates.
  if (code == Code::kInvalidArgument) {
    return std::holds_alternative<StepCall>(waiting.event) ||
           std::holds_alternative<DuplicateCall>(waiting.event);
  }
  return true;
}

void ClientSimulation::ObserveReply(const Reply& reply) {
  const auto found = calls_.find(reply.call);
  if (found == calls_.end()) {
    return verdict_.Broken(absl::StrCat("answered twice: ", ToText(Effect(reply))));
  }
  const Waiting waiting = found->second;
  calls_.erase(found);
  const Event& event = waiting.event;
  const SessionId* const session = SessionOf(event);
  Client* const client = session == nullptr ? nullptr : Find(*session);
  if (!reply.status.ok()) {
    if (!IsPermitted(waiting, reply.status.code())) {
      verdict_.Broken(absl::StrCat(ToText(Effect(reply)), ": to ", ToText(event)));
    }
    if (const auto* end = std::get_if<EndJobCall>(&event)) {
      if (end->viewer) Hit(ClientProbe::kEndedNoForeignJob);
    }
    if (reply.status.message().find("the quota of ") != absl::string_view::npos) {
      Hit(ClientProbe::kRefusedByQuota);
    }
    if (reply.status.code() == Code::kResourceExhausted) {
      if (std::holds_alternative<DuplicateCall>(event)) Hit(ClientProbe::kNoRoomToDuplicate);
      if (reply.status.message().find("in common") != absl::string_view::npos) {
        Hit(ClientProbe::kNoRoomToWrite);
      }
    }
    if (client == nullptr) return;
    if (std::holds_alternative<AllocateCall>(event)) client->allocating = false;
    if (std::holds_alternative<OpenCall>(event)) return EndClient(*session);
    return OnRefusal(client, waiting, reply.status.code());
  }
  if (const auto* ended = std::get_if<EndJobReply>(&reply.value)) {
    const auto& end = std::get<EndJobCall>(event);
    if (end.viewer.value_or(ended->job.uid) != ended->job.uid) {
      verdict_.Broken(absl::StrCat(ToText(event), ": it is a foreign job"));
    }
    Hit(ClientProbe::kEndedJob);
  }
  if (client == nullptr) return;
  if (const auto* duplicate = std::get_if<DuplicateCall>(&event)) {
    OnDuplicate(client, *duplicate, std::get<AllocateReply>(reply.value));
  } else if (const auto* allocated = std::get_if<AllocateReply>(&reply.value)) {
    client->chunks = allocated->chunks;
    for (const ChunkId chunk : client->chunks) client->contents[chunk] = Content();
  } else if (const auto* open = std::get_if<OpenReply>(&reply.value)) {
    client->open = true;
    client->renewed = now_;
    OnOpen(client, *open);
  } else if (const auto* fetched = std::get_if<FetchReply>(&reply.value)) {
    OnFetch(client, std::get<FetchCall>(event), *fetched);
  } else if (const auto* part = std::get_if<PartReply>(&reply.value)) {
    OnPart(client, waiting, *part);
  } else if (const auto* offered = std::get_if<OfferReply>(&reply.value)) {
    OnOffer(client, std::get<OfferCall>(event), *offered);
  } else if (const auto* commit = std::get_if<CommitCall>(&event)) {
    if (outcome_.events != waiting.since) Hit(ClientProbe::kCommitWaited);
    if (commit->step == client->step) return;
    if (commit->step != client->step + 1) {
      return verdict_.Broken(absl::StrCat("committed out of order: ", ToText(event)));
    }
    client->step = commit->step;
    OnCommit(client, *commit);
  } else if (const auto* freed = std::get_if<FreeCall>(&event)) {
    for (const ChunkId chunk : freed->chunks) {
      const auto content = client->contents.find(chunk);
      if (content == client->contents.end()) continue;
      if (content->second.shared != 0) Hit(ClientProbe::kFreedShared);
      client->contents.erase(content);
      client->leases.erase(chunk);
    }
  } else if (const auto* discard = std::get_if<DiscardCall>(&event)) {
    for (const ChunkId chunk : discard->chunks) {
      client->leases.erase(chunk);
      const auto content = client->contents.find(chunk);
      if (content == client->contents.end()) continue;
      if (content->second.shared != 0) Hit(ClientProbe::kDiscardedShared);
      content->second = {kZeros, /*defined=*/false};
    }
  }
}

void ClientSimulation::OnFetch(Client* client, const FetchCall& call, const FetchReply& reply) {
  if (reply.leases.size() != call.chunks.size()) {
    return verdict_.Broken(absl::StrCat("leased another number: ", ToText(Event(call))));
  }
  for (size_t i = 0; i < reply.leases.size(); ++i) {
    const Lease& lease = reply.leases[i];
    const auto found = client->contents.find(call.chunks[i]);
    if (found == client->contents.end() || lease.chunk != call.chunks[i]) {
      return verdict_.Broken(
          absl::StrCat("leased chunk ", lease.chunk.value(), ": ", ToText(Event(call))));
    }
    Content& content = found->second;
    const bool writes = lease.access == Access::kWrite;
    if (call.access == Access::kWrite && !writes) {
      return verdict_.Broken(absl::StrCat("no write lease: ", ToText(Event(call))));
    }
    if (writes && IsCommon(lease.place)) {
      return verdict_.Broken(absl::StrCat("lent for writing: ", ToText(Event(call))));
    }
    if (node_.regions().at(lease.place.region).uid != client->uid ||
        sent_.count({client->session, lease.place.region}) == 0) {
      return verdict_.Broken(absl::StrCat("leased where it has no memory: ", ToText(Event(call))));
    }
    if (IsCommon(lease.place)) Hit(ClientProbe::kReadShared);
    if (node_.IsTarget(lease.place)) {
      return verdict_.Broken(
          absl::StrCat("chunk ", lease.chunk.value(), " is leased while it is filled"));
    }
    const Stamp seen = node_.Read(lease.place);
    if (!content.defined || (content.torn && writes)) {
      if (writes) content = {seen};
    } else if (seen != content.stamp && !config_.hostile) {
      return verdict_.Broken(absl::StrCat("WRONG BYTES: chunk ", lease.chunk.value(), " shows ",
                                          seen, " where ", content.stamp, " was written"));
    }
    const bool on_device = node_.regions().at(lease.place.region).pool.tier == Tier::kDevice;
    const auto held = client->leases.find(lease.chunk);
    if (writes && content.shared != 0 && on_device && held != client->leases.end() &&
        SamePlace(held->second.place, lease.place)) {
      Hit(ClientProbe::kWroteSharedOnDevice);
    }
    if (writes) content.shared = 0;
    if (content.shared != 0 && on_device) Hit(ClientProbe::kReadSharedOnDevice);
    client->leases[lease.chunk] = lease;
    client->shown[lease.chunk] = seen;
  }
}

void ClientSimulation::OnPart(Client* client, const Waiting& waiting, const PartReply& reply) {
  const StepCall& call = std::get<StepCall>(waiting.event);
  Held held;
  for (uint32_t i = 0; i < call.reads; ++i) held.read.push_back(node_.Read(reply.places.at(i)));
  if (held.read != waiting.read && !config_.hostile) {
    return verdict_.Broken(absl::StrCat("WRONG BYTES: a part reads them: ", ToText(Event(call))));
  }
  for (size_t i = call.reads; i < reply.places.size(); ++i) {
    if (IsCommon(reply.places[i])) {
      return verdict_.Broken(absl::StrCat("lent to be written: ", ToText(Event(call))));
    }
  }
  const PartKey key{call.session, call.part};
  held.work = WorkOf(call);
  held.shareable = call.contents.has_value();
  held.writes.assign(call.chunks.begin() + call.reads, call.chunks.end());
  node_.BeginPart(key, reply.places, call.reads, MiB(2), held.work);
  // The result of an earlier part ends, too, which may have come since the call.
  Undefine(client, held.writes);
  held_.emplace(key, std::move(held));
}

void ClientSimulation::OnCommit(Client* client, const CommitCall& call) {
  for (size_t i = 0; i < call.chunks.size(); ++i) {
    const auto chunk = client->contents.find(call.chunks[i]);
    const auto shadow = client->contents.find(call.shadows[i]);
    if (chunk == client->contents.end() || shadow == client->contents.end()) {
      if (config_.hostile) continue;
      return verdict_.Broken(absl::StrCat("committed a freed chunk: ", ToText(Event(call))));
    }
    if (chunk->second.shared + shadow->second.shared != 0) Hit(ClientProbe::kCommittedShared);
    std::swap(chunk->second, shadow->second);
    // A content that reads as anything may be shared, too.
    if (!call.keep_old_content) shadow->second.defined = false;
  }
}

void ClientSimulation::After() {
  if (!config_.hostile) CheckLeases();
  node_.CheckParts();
}

// A leased chunk stays as it is, whatever others do, and no client writes where others look.
void ClientSimulation::CheckLeases() {
  std::vector<std::pair<const Client*, const Lease*>> all;
  for (const auto& [id, client] : clients_) {
    for (const auto& [chunk, lease] : client.leases) all.emplace_back(&client, &lease);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [client, lease] = all[i];
    const uint64_t chunk = lease->chunk.value();
    const Content& content = client->contents.at(lease->chunk);
    // A lease of a common content stays where it is, also if its client writes the chunk meanwhile.
    const bool is_common = IsCommon(lease->place);
    const Stamp expected = is_common ? client->shown.at(lease->chunk) : content.stamp;
    const bool is_known = is_common || (content.defined && !content.torn);
    if (is_known && node_.Read(lease->place) != expected) {
      return verdict_.Broken(absl::StrCat("WRONG BYTES: chunk ", chunk,
                                          " changed under the lease of session ",
                                          client->session.value()));
    }
    if (node_.IsTarget(lease->place)) {
      return verdict_.Broken(absl::StrCat("leased chunk ", chunk, " is being filled"));
    }
    for (size_t j = 0; j < i; ++j) {
      const auto& [other, other_lease] = all[j];
      if (!SamePlace(lease->place, other_lease->place)) continue;
      if (client->uid != other->uid) return verdict_.Broken("two users have one place");
      if (lease->access == Access::kWrite || other_lease->access == Access::kWrite) {
        return verdict_.Broken(absl::StrCat("chunk ", chunk, " is leased for writing where ",
                                            other_lease->chunk.value(), " is leased"));
      }
      Hit(ClientProbe::kTwoReaders);
    }
  }
}

}  // namespace memtide::sim

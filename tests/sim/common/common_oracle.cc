// What each script must see.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/common/common_simulation.h"
#include "tests/sim/oracle/state.h"

namespace memtide::sim {
namespace {

using Code = absl::StatusCode;

bool Same(MemoryPlace a, MemoryPlace b) { return a.region == b.region && a.offset == b.offset; }

}  // namespace

void CommonSimulation::EndScript(SessionId session) {
  for (auto part = held_.begin(); part != held_.end();) {
    if (part->first.first == session) {
      node_.EndPart(part->first);
      part = held_.erase(part);
    } else {
      ++part;
    }
  }
  scripts_.erase(session);
}

bool CommonSimulation::IsCommon(const MemoryPlace& place) const {
  return node_.regions().at(place.region).read_only;
}

void CommonSimulation::Observe(const Effect& effect) {
  if (const auto* reply = std::get_if<Reply>(&effect)) {
    ObserveReply(*reply);
  } else if (const auto* revoke = std::get_if<Revoke>(&effect)) {
    revokes_.push_back(*revoke);
  } else if (const auto* send = std::get_if<SendRegion>(&effect)) {
    const Script* const script = Find(send->session);
    if (script != nullptr && node_.regions().at(send->region).uid != script->uid) {
      verdict_.Broken(absl::StrCat(ToText(effect), ": it is another user's"));
    }
    sent_.insert({send->session, send->region});
  } else if (const auto* close = std::get_if<CloseSession>(&effect)) {
    const Script* const script = Find(close->session);
    if (script != nullptr && !script->hung) {
      verdict_.Broken(absl::StrCat(ToText(effect), ": it lives"));
    }
    EndScript(close->session);
  } else if (const auto* step = std::get_if<StartStep>(&effect)) {
    if (step->work != nullptr && !step->work->copies.empty()) Hit(CommonProbe::kCopied);
  }
}

bool CommonSimulation::IsPermitted(const Event& event, Code code) const {
  if (code == Code::kInternal || code == Code::kUnknown) return false;
  if (config_.hostile) return true;
  const SessionId* const session = SessionOf(event);
  const auto script = session == nullptr ? scripts_.end() : scripts_.find(*session);
  if (script == scripts_.end()) return true;
  if (code == Code::kNotFound) {
    const std::vector<ChunkId>* const chunks = ChunksOf(event);
    if (chunks == nullptr || std::holds_alternative<CommitCall>(event)) return true;
    // A chunk that is freed while a call waits for it ends the call.
    return std::any_of(chunks->begin(), chunks->end(), [&](ChunkId chunk) {
      return script->second.contents.count(chunk) == 0 ||
             std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
               const auto* freed = std::get_if<FreeCall>(&entry.second);
               return freed != nullptr && freed->chunks[0] == chunk;
             });
    });
  }
  if (code == Code::kDataLoss || code == Code::kUnauthenticated) return false;
  if (code == Code::kFailedPrecondition) return !std::holds_alternative<ReleaseCall>(event);
  if (code == Code::kInvalidArgument) return std::holds_alternative<StepCall>(event);
  return true;
}

void CommonSimulation::ObserveReply(const Reply& reply) {
  const auto found = calls_.find(reply.call);
  if (found == calls_.end()) {
    return verdict_.Broken(absl::StrCat("answered twice: ", ToText(Effect(reply))));
  }
  const Event event = found->second;
  const bool permitted = reply.status.ok() || IsPermitted(event, reply.status.code());
  calls_.erase(found);
  if (!permitted) {
    return verdict_.Broken(absl::StrCat(ToText(Effect(reply)), ": to ", ToText(event)));
  }
  const SessionId* const session = SessionOf(event);
  Script* const script = session == nullptr ? nullptr : Find(*session);
  if (script == nullptr) return;
  if (!reply.status.ok()) {
    if (std::holds_alternative<AllocateCall>(event)) script->allocating = false;
    if (std::holds_alternative<OpenCall>(event)) EndScript(*session);
    return;
  }
  if (const auto* allocated = std::get_if<AllocateReply>(&reply.value)) {
    script->chunks = allocated->chunks;
    for (const ChunkId chunk : script->chunks) script->contents[chunk] = Content();
  } else if (std::holds_alternative<OpenReply>(reply.value)) {
    script->open = true;
    script->renewed = now_;
  } else if (const auto* fetched = std::get_if<FetchReply>(&reply.value)) {
    Accept(script, std::get<FetchCall>(event), *fetched);
  } else if (const auto* part = std::get_if<PartReply>(&reply.value)) {
    Accept(script, std::get<StepCall>(event), *part);
  } else if (const auto* offered = std::get_if<OfferReply>(&reply.value)) {
    Accept(script, std::get<OfferCall>(event), *offered);
  } else if (const auto* commit = std::get_if<CommitCall>(&event)) {
    Accept(script, *commit);
  } else if (const auto* freed = std::get_if<FreeCall>(&event)) {
    for (const ChunkId chunk : freed->chunks) {
      const auto content = script->contents.find(chunk);
      if (content == script->contents.end()) continue;
      if (content->second.shared) Hit(CommonProbe::kFreedShared);
      script->contents.erase(content);
      script->leases.erase(chunk);
    }
  } else if (const auto* discard = std::get_if<DiscardCall>(&event)) {
    for (const ChunkId chunk : discard->chunks) {
      script->leases.erase(chunk);
      const auto content = script->contents.find(chunk);
      if (content == script->contents.end()) continue;
      if (content->second.shared) Hit(CommonProbe::kDiscardedShared);
      content->second = {kZeros, /*defined=*/false};
    }
  }
}

void CommonSimulation::Accept(Script* script, const FetchCall& call, const FetchReply& reply) {
  if (reply.leases.size() != call.chunks.size()) {
    return verdict_.Broken(absl::StrCat("leased another number: ", ToText(Event(call))));
  }
  for (size_t i = 0; i < reply.leases.size(); ++i) {
    const Lease& lease = reply.leases[i];
    const auto found = script->contents.find(call.chunks[i]);
    if (found == script->contents.end() || lease.chunk != call.chunks[i]) {
      return verdict_.Broken(
          absl::StrCat("leased chunk ", lease.chunk.value(), ": ", ToText(Event(call))));
    }
    Content& content = found->second;
    const bool writes = lease.access == Access::kWrite;
    if (writes && IsCommon(lease.place)) {
      return verdict_.Broken(absl::StrCat("lent for writing: ", ToText(Event(call))));
    }
    if (node_.regions().at(lease.place.region).uid != script->uid ||
        sent_.count({script->session, lease.place.region}) == 0) {
      return verdict_.Broken(absl::StrCat("leased where it has no memory: ", ToText(Event(call))));
    }
    if (IsCommon(lease.place)) Hit(CommonProbe::kReadShared);
    const Stamp seen = node_.Read(lease.place);
    if (node_.IsTarget(lease.place)) {
      return verdict_.Broken(
          absl::StrCat("chunk ", lease.chunk.value(), " is leased while it is filled"));
    }
    if (!content.defined) {
      if (writes) content = {seen};
    } else if (seen != content.stamp && !config_.hostile) {
      return verdict_.Broken(absl::StrCat("WRONG BYTES: chunk ", lease.chunk.value(), " shows ",
                                          seen, " where ", content.stamp, " was written"));
    }
    if (writes) content.shared = false;
    script->leases[lease.chunk] = lease;
  }
}

void CommonSimulation::Accept(Script* script, const StepCall& call, const PartReply& reply) {
  std::vector<Stamp> read;
  for (uint32_t i = 0; i < call.reads; ++i) {
    read.push_back(node_.Read(reply.places.at(i)));
    const auto content = script->contents.find(call.chunks[i]);
    if (config_.hostile || content == script->contents.end() || !content->second.defined) continue;
    if (read.back() != content->second.stamp) {
      return verdict_.Broken(absl::StrCat("WRONG BYTES: a part reads them: ", ToText(Event(call))));
    }
  }
  for (size_t i = call.reads; i < reply.places.size(); ++i) {
    if (IsCommon(reply.places[i])) {
      return verdict_.Broken(absl::StrCat("lent to be written: ", ToText(Event(call))));
    }
  }
  const PartKey key{call.session, call.part};
  Held held;
  held.work = call.call.value();
  held.read = read;
  held.writes.assign(call.chunks.begin() + call.reads, call.chunks.end());
  node_.BeginPart(key, reply.places, call.reads, MiB(2), held.work);
  for (const ChunkId chunk : held.writes) {
    const auto content = script->contents.find(chunk);
    if (content != script->contents.end()) content->second = {kZeros, /*defined=*/false};
  }
  held_.emplace(key, std::move(held));
}

void CommonSimulation::Accept(Script* script, const OfferCall& call, const OfferReply& reply) {
  for (const uint32_t number : reply.shared) {
    const auto content = script->contents.find(call.chunks.at(number));
    if (content == script->contents.end()) continue;
    content->second.shared = true;
    Hit(CommonProbe::kShared);
  }
  if (!reply.leased.empty()) Hit(CommonProbe::kLeased);
}

void CommonSimulation::Accept(Script* script, const CommitCall& call) {
  if (call.step == script->step) return;
  if (call.step != script->step + 1) {
    return verdict_.Broken(absl::StrCat("committed out of order: ", ToText(Event(call))));
  }
  script->step = call.step;
  for (size_t i = 0; i < call.chunks.size(); ++i) {
    const auto chunk = script->contents.find(call.chunks[i]);
    const auto shadow = script->contents.find(call.shadows[i]);
    if (chunk == script->contents.end() || shadow == script->contents.end()) continue;
    if (chunk->second.shared || shadow->second.shared) Hit(CommonProbe::kCommittedShared);
    std::swap(chunk->second, shadow->second);
    if (!call.keep_old_content) shadow->second.defined = false;
  }
}

// What is leased stays as it is, whatever others do, and no script writes where others look.
void CommonSimulation::CheckLeases() {
  struct Leased {
    const Script* script;
    ChunkId chunk;
    const Lease* lease;
  };
  std::vector<Leased> all;
  for (const auto& [id, script] : scripts_) {
    for (const auto& [chunk, lease] : script.leases) all.push_back({&script, chunk, &lease});
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [script, chunk, lease] = all[i];
    const auto content = script->contents.find(chunk);
    if (content == script->contents.end()) continue;
    if (content->second.defined && node_.Read(lease->place) != content->second.stamp) {
      return verdict_.Broken(absl::StrCat("WRONG BYTES: chunk ", chunk.value(),
                                          " changed under the lease of session ",
                                          script->session.value()));
    }
    if (node_.IsTarget(lease->place)) {
      return verdict_.Broken(absl::StrCat("leased chunk ", chunk.value(), " is being filled"));
    }
    for (size_t j = 0; j < i; ++j) {
      if (!Same(lease->place, all[j].lease->place)) continue;
      if (script->uid != all[j].script->uid) return verdict_.Broken("two users have one place");
      if (lease->access == Access::kRead && all[j].lease->access == Access::kRead) {
        Hit(CommonProbe::kTwoReaders);
        continue;
      }
      return verdict_.Broken(absl::StrCat("chunk ", chunk.value(), " is leased for writing where ",
                                          all[j].chunk.value(), " is leased"));
    }
  }
}

}  // namespace memtide::sim

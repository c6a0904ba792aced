// What each rank must see, and what all of them commit.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/state.h"
#include "tests/sim/ranks/rank_simulation.h"

namespace memtide::sim {
namespace {

using Code = absl::StatusCode;

// How long the commit of a rank waits for the others.
constexpr Duration kPatience = std::chrono::seconds(5);

bool Same(MemoryPlace a, MemoryPlace b) { return a.region == b.region && a.offset == b.offset; }

}  // namespace

bool RankSimulation::WaitsForCommit(SessionId session) const {
  return std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
    const auto* commit = std::get_if<CommitCall>(&entry.second.event);
    return commit != nullptr && commit->session == session;
  });
}

bool RankSimulation::WaitsForAll(SessionId session) const {
  return std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
    const auto* commit = std::get_if<CommitCall>(&entry.second.event);
    return commit != nullptr && commit->session == session && commit->with_all_ranks;
  });
}

void RankSimulation::EndRank(SessionId session) {
  Rank* const rank = Find(session);
  if (rank == nullptr) return;
  for (auto part = held_.begin(); part != held_.end();) {
    if (part->first.first == session) {
      node_.EndPart(part->first);
      part = held_.erase(part);
    } else {
      ++part;
    }
  }
  if (config_.keeps && rank->open) {
    Rank& left = left_[rank->number] = *rank;
    for (const auto& [chunk, lease] : left.leases) {
      const auto content = left.contents.find(chunk);
      if (lease.access == Access::kWrite && content != left.contents.end()) {
        content->second.torn = true;
      }
    }
    left.leases.clear();
  }
  ranks_.erase(session);
  committed_now_.erase(session);
}

void RankSimulation::SetResult(Rank* rank, ChunkId chunk, Stamp stamp, uint64_t made) {
  if (rank->contents.count(chunk) == 0) return;  // Freed meanwhile.
  // A part of the rank that waits to write the chunk may have another content for it already.
  if (IsBusy(*rank, chunk)) {
    rank->contents[chunk] = {kZeros, /*defined=*/false};
    return;
  }
  rank->contents[chunk] = {stamp};
  // A write fetch that waits gives the rank a content of its own.
  const bool is_written = std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
    const auto* fetch = std::get_if<FetchCall>(&entry.second.event);
    return fetch != nullptr && fetch->session == rank->session && fetch->access == Access::kWrite &&
           std::count(fetch->chunks.begin(), fetch->chunks.end(), chunk) != 0;
  });
  rank->contents[chunk].made = is_written ? 0 : made;
}

void RankSimulation::Observe(const Effect& effect) {
  if (const auto* reply = std::get_if<Reply>(&effect)) {
    ObserveReply(*reply);
  } else if (const auto* revoke = std::get_if<Revoke>(&effect)) {
    revokes_.push_back(*revoke);
    const Rank* const rank = Find(revoke->session);
    if (rank == nullptr || config_.hostile) return;
    for (const ChunkId chunk : revoke->chunks) {
      if (std::count(rank->chunks.begin(), rank->chunks.end(), chunk) == 0) {
        verdict_.Broken(absl::StrCat(ToText(effect), ": the id is another rank's"));
      }
    }
  } else if (const auto* close = std::get_if<CloseSession>(&effect)) {
    const Rank* const rank = Find(close->session);
    if (rank != nullptr && !rank->hung) {
      verdict_.Broken(absl::StrCat(ToText(effect), ": it lives"));
    }
    EndRank(close->session);
  } else if (const auto* lost = std::get_if<JobLost>(&effect)) {
    verdict_.Broken(absl::StrCat("the job is lost: ", lost->why.ToString()));
  } else if (const auto* step = std::get_if<StartStep>(&effect)) {
    if (step->work != nullptr && !step->work->copies.empty()) Hit(RankProbe::kCopied);
  }
}

// Whether a call may get the error, of whatever rank the cause is.
bool RankSimulation::IsPermitted(const Waiting& waiting, Code code) const {
  if (code == Code::kInternal || code == Code::kUnknown) return false;
  if (config_.hostile) return true;
  if (code == Code::kUnauthenticated) {
    const SessionId* const session = SessionOf(waiting.event);
    return session == nullptr || ranks_.count(*session) == 0;
  }
  if (code == Code::kNotFound || code == Code::kDataLoss) {
    const std::vector<ChunkId>* const chunks = ChunksOf(waiting.event);
    const SessionId* const session = SessionOf(waiting.event);
    const auto rank = session == nullptr ? ranks_.end() : ranks_.find(*session);
    if (chunks == nullptr || rank == ranks_.end()) return rank == ranks_.end();
    // One of them may have freed a chunk, and then all are refused.
    if (std::holds_alternative<CommitCall>(waiting.event)) return true;
    return std::any_of(chunks->begin(), chunks->end(), [&](ChunkId chunk) {
      const auto content = rank->second.contents.find(chunk);
      if (content == rank->second.contents.end() || freed_now_.count(chunk) != 0) return true;
      // A part that was to write a torn chunk may have ended with its session.
      const bool is_lost = content->second.torn || (config_.keeps && !content->second.defined);
      return code == Code::kDataLoss && is_lost;
    });
  }
  if (code == Code::kFailedPrecondition && std::holds_alternative<ReleaseCall>(waiting.event)) {
    return false;
  }
  const auto* const step = std::get_if<StepCall>(&waiting.event);
  if (code == Code::kInvalidArgument) return step != nullptr;  // A number that is in use.
  return true;
}

void RankSimulation::ObserveReply(const Reply& reply) {
  const auto found = calls_.find(reply.call);
  if (found == calls_.end()) {
    return verdict_.Broken(absl::StrCat("answered twice: ", ToText(Effect(reply))));
  }
  const Waiting waiting = found->second;
  calls_.erase(found);
  const SessionId* const session = SessionOf(waiting.event);
  Rank* const rank = session == nullptr ? nullptr : Find(*session);
  if (!reply.status.ok()) {
    if (!IsPermitted(waiting, reply.status.code())) {
      verdict_.Broken(absl::StrCat(ToText(Effect(reply)), ": to ", ToText(waiting.event)));
    }
    if (rank == nullptr) return;
    const auto* const commit = std::get_if<CommitCall>(&waiting.event);
    if (commit != nullptr && commit->with_all_ranks &&
        reply.status.code() == Code::kFailedPrecondition) {
      Hit(RankProbe::kRefusedWithoutARank);
    }
    if (std::holds_alternative<AllocateCall>(waiting.event)) rank->allocating = false;
    if (std::holds_alternative<OpenCall>(waiting.event)) EndRank(*session);
    // A part that never began may have had its results in chunks of its own already.
    const auto* const part = std::get_if<StepCall>(&waiting.event);
    for (size_t i = part == nullptr ? 0 : part->reads; part != nullptr && i < part->chunks.size();
         ++i) {
      const auto content = rank->contents.find(part->chunks[i]);
      if (content != rank->contents.end() && content->second.made != 0) {
        content->second = {kZeros, /*defined=*/false};
      }
    }
    return;
  }
  if (rank == nullptr) return;
  if (const auto* allocated = std::get_if<AllocateReply>(&reply.value)) {
    rank->chunks = allocated->chunks;
    for (const ChunkId chunk : rank->chunks) rank->contents[chunk] = Content();
  } else if (const auto* open = std::get_if<OpenReply>(&reply.value)) {
    const auto left = left_.find(rank->number);
    if (left != left_.end()) {
      Hit(RankProbe::kTookPlace);
      rank->chunks = left->second.chunks;
      rank->contents = left->second.contents;
      rank->has_shared = left->second.has_shared;
      rank->step = left->second.step;
    }
    if (config_.keeps && open->committed_step != rank->step) {
      return verdict_.Broken(absl::StrCat("rank ", rank->number, " goes on from step ",
                                          open->committed_step, ", and has committed ",
                                          rank->step));
    }
    rank->open = true;
    rank->step = open->committed_step;
    rank->renewed = now_;
  } else if (const auto* fetched = std::get_if<FetchReply>(&reply.value)) {
    Accept(rank, std::get<FetchCall>(waiting.event), *fetched);
  } else if (const auto* part = std::get_if<PartReply>(&reply.value)) {
    Accept(rank, waiting, std::get<StepCall>(waiting.event), *part);
  } else if (const auto* commit = std::get_if<CommitCall>(&waiting.event)) {
    if (outcome_.events != waiting.since) Hit(RankProbe::kCommitWaited);
    Accept(rank, *commit);
  } else if (const auto* freed = std::get_if<FreeCall>(&waiting.event)) {
    for (const ChunkId chunk : freed->chunks) {
      const auto content = rank->contents.find(chunk);
      if (content == rank->contents.end()) continue;
      if (content->second.made != 0) Hit(RankProbe::kFreedShared);
      rank->contents.erase(content);
      rank->leases.erase(chunk);
    }
  } else if (const auto* discard = std::get_if<DiscardCall>(&waiting.event)) {
    for (const ChunkId chunk : discard->chunks) {
      rank->leases.erase(chunk);
      const auto content = rank->contents.find(chunk);
      if (content == rank->contents.end()) continue;
      if (content->second.made != 0) Hit(RankProbe::kDiscardedShared);
      content->second = {kZeros, /*defined=*/false};
    }
  }
}

void RankSimulation::Accept(Rank* rank, const FetchCall& call, const FetchReply& reply) {
  if (reply.leases.size() != call.chunks.size()) {
    return verdict_.Broken(absl::StrCat("leased another number: ", ToText(Event(call))));
  }
  for (size_t i = 0; i < reply.leases.size(); ++i) {
    const Lease& lease = reply.leases[i];
    const auto found = rank->contents.find(call.chunks[i]);
    if (config_.hostile) {
      if (found != rank->contents.end()) rank->leases[call.chunks[i]] = lease;
      continue;
    }
    if (lease.chunk != call.chunks[i] || found == rank->contents.end()) {
      return verdict_.Broken(
          absl::StrCat("leased chunk ", lease.chunk.value(), ": ", ToText(Event(call))));
    }
    Content& content = found->second;
    const Stamp seen = node_.Read(lease.place);
    if (node_.IsTarget(lease.place)) {
      return verdict_.Broken(
          absl::StrCat("chunk ", lease.chunk.value(), " is leased while it is filled"));
    }
    const bool writes = lease.access == Access::kWrite;
    if (!content.defined || (content.torn && writes)) {
      if (writes) content = {seen};
    } else if (seen != content.stamp) {
      return verdict_.Broken(absl::StrCat("WRONG BYTES: chunk ", lease.chunk.value(), " shows ",
                                          seen, " where ", content.stamp, " was written"));
    }
    if (call.access == Access::kWrite && !writes) {
      return verdict_.Broken(absl::StrCat("no write lease: ", ToText(Event(call))));
    }
    if (writes) content.made = 0;
    rank->leases[lease.chunk] = lease;
  }
}

void RankSimulation::Accept(Rank* rank, const Waiting& waiting, const StepCall& call,
                            const PartReply& reply) {
  if (!reply.unknown_reads.empty()) return Hit(RankProbe::kDigestsAsked);
  if (reply.difference.has_value()) Hit(RankProbe::kDiffers);
  // The key of what the part computes: the same for all ranks.
  const uint64_t work = call.contents.has_value()
                            ? call.contents->work.high * 1000 + call.contents->work.low
                            : (uint64_t{1} << 40) + call.call.value();
  if (!reply.made) {
    if (outcome_.events != waiting.since) Hit(RankProbe::kMadeAnew);
    const PartKey key{call.session, call.part};
    std::vector<Stamp> read;
    for (uint32_t i = 0; i < call.reads; ++i) read.push_back(node_.Read(reply.places.at(i)));
    if (read != waiting.read && !config_.hostile) {
      return verdict_.Broken(absl::StrCat("WRONG BYTES: a part reads them: ", ToText(Event(call))));
    }
    node_.BeginPart(key, reply.places, call.reads, MiB(2), work);
    if (!verdict_.ok()) return;
    Held held;
    held.writes.assign(call.chunks.begin() + call.reads, call.chunks.end());
    // The result of an earlier part ends, too, which may have come since the call.
    for (const ChunkId chunk : held.writes) {
      const auto content = rank->contents.find(chunk);
      if (content != rank->contents.end()) content->second = {kZeros, /*defined=*/false};
    }
    held.read = read;
    held.work = work;
    held.shareable = call.contents.has_value();
    held_.emplace(key, std::move(held));
    return;
  }
  Hit(RankProbe::kMade);
  for (auto& [id, other] : ranks_) other.has_shared = true;
  if (outcome_.events != waiting.since) Hit(RankProbe::kWaited);
  const auto made = made_.find({work, waiting.read});
  if (made == made_.end() && !config_.hostile) {
    return verdict_.Broken(absl::StrCat("no rank has computed it: ", ToText(Event(call))));
  }
  for (size_t i = call.reads; i < call.chunks.size(); ++i) {
    SetResult(rank, call.chunks[i], StepResult(waiting.read, work, i - call.reads),
              made == made_.end() ? 0 : made->second);
  }
}

void RankSimulation::Accept(Rank* rank, const CommitCall& call) {
  if (call.step == rank->step) return;
  Hit(RankProbe::kCommitted);
  if (call.step != rank->step + 1) {
    return verdict_.Broken(absl::StrCat("committed out of order: ", ToText(Event(call))));
  }
  rank->step = call.step;
  if (call.with_all_ranks) committed_with_all_.insert(rank->session);
  if (config_.hostile) return;
  committed_now_.insert(rank->session);
  for (size_t i = 0; i < call.chunks.size(); ++i) {
    Content& chunk = rank->contents.at(call.chunks[i]);
    Content& shadow = rank->contents.at(call.shadows[i]);
    std::swap(chunk, shadow);
    if (chunk.made != 0) committed_contents_[{chunk.made, chunk.stamp}] = rank->step;
    // An empty content may be shared, too.
    if (!call.keep_old_content) shadow.defined = false;
  }
}

void RankSimulation::After() {
  if (!config_.hostile) CheckLeases();
  node_.CheckParts();
  CheckAllCommitted();
  if (config_.hostile) return;
  CheckCommits();
}

// A commit of all ranks is one of all ranks.
void RankSimulation::CheckAllCommitted() {
  if (committed_with_all_.empty()) return;
  Hit(RankProbe::kAllCommitted);
  if (committed_with_all_.size() != config_.ranks) {
    verdict_.Broken(
        absl::StrCat(committed_with_all_.size(), " ranks have committed with all ", config_.ranks));
  }
}

void RankSimulation::CheckLeases() {
  std::vector<std::tuple<SessionId, ChunkId, const Lease*>> all;
  for (const auto& [id, rank] : ranks_) {
    for (const auto& [chunk, lease] : rank.leases) all.emplace_back(id, chunk, &lease);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [id, chunk, lease] = all[i];
    const Content& content = ranks_.at(id).contents.at(chunk);
    if (content.defined && !content.torn && node_.Read(lease->place) != content.stamp) {
      return verdict_.Broken(absl::StrCat("WRONG BYTES: chunk ", chunk.value(),
                                          " changed under the lease of session ", id.value()));
    }
    if (node_.IsTarget(lease->place)) {
      return verdict_.Broken(absl::StrCat("leased chunk ", chunk.value(), " is being filled"));
    }
    for (size_t j = 0; j < i; ++j) {
      const auto& [other_id, other_chunk, other] = all[j];
      if (!Same(lease->place, other->place)) continue;
      if (lease->access == Access::kRead && other->access == Access::kRead) continue;
      return verdict_.Broken(absl::StrCat("chunk ", chunk.value(), " is leased for writing where ",
                                          other_chunk.value(), " is leased"));
    }
  }
}

// A commit that has waited long enough goes on without the ranks that have not called.
void RankSimulation::NoteWaits() {
  const Duration patience = std::min(kPatience, config_.limits.max_wait);
  const bool some = std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
    const auto* const commit = std::get_if<CommitCall>(&entry.second.event);
    return commit != nullptr && !commit->with_all_ranks && now_ - entry.second.called >= patience;
  });
  for (const auto& [id, rank] : ranks_) {
    if (some && !WaitsForCommit(id)) in_vain_.insert(id);
  }
}

// A content that several ranks have is committed by all of them in one event, but for those that
// have committed the step before, or for which others have waited in vain.
void RankSimulation::CheckCommits() {
  if (committed_now_.size() > 1) Hit(RankProbe::kCommittedTogether);
  for (const auto& [result, step] : committed_contents_) {
    const auto& [made, stamp] = result;
    for (const auto& [id, rank] : ranks_) {
      const bool is_no_concern = committed_now_.count(id) + in_vain_.count(id) != 0;
      if (is_no_concern || rank.step >= step || WaitsForAll(id)) continue;
      for (const auto& [chunk, content] : rank.contents) {
        if (content.made != made || content.stamp != stamp) continue;
        return verdict_.Broken(
            absl::StrCat("session ", id.value(), " shares what others have committed without it"));
      }
    }
  }
}

}  // namespace memtide::sim

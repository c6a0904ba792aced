// The contents that the ranks must see, and those that all of them commit.
#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/state.h"
#include "tests/sim/ranks/rank_simulation.h"

namespace memtide::sim {
namespace {

// How long the commit of a rank waits for the others.
constexpr Duration kPatience = std::chrono::seconds(5);

}  // namespace

void RankSimulation::Before(const Event& event) {
  committed_now_.clear();
  committed_with_all_.clear();
  committed_contents_.clear();
  // A rank shares no more the chunks that it is about to write.
  const auto* const fetch = std::get_if<FetchCall>(&event);
  if (fetch != nullptr && fetch->access == Access::kWrite && Find(fetch->session) != nullptr) {
    for (auto& [chunk, content] : Find(fetch->session)->contents) {
      if (Names(fetch->chunks, chunk)) content.shared = 0;
    }
  }
  if (std::holds_alternative<Tick>(event)) NoteWaits();
  if (std::holds_alternative<Restore>(event)) in_vain_.clear();
}

void RankSimulation::EndClient(SessionId session) {
  const Rank* const rank = Find(session);
  if (rank != nullptr && rank->open && config_.keeps) {
    Rank& left = left_[rank->number] = *rank;
    for (const auto& [chunk, lease] : left.leases) {
      const auto content = left.contents.find(chunk);
      if (lease.access == Access::kWrite && content != left.contents.end()) {
        content->second.torn = true;
      }
    }
    left.leases.clear();
  }
  committed_now_.erase(session);
  ClientSimulation::EndClient(session);
}

void RankSimulation::SetResult(Rank* rank, ChunkId chunk, Stamp stamp, uint64_t made) {
  if (rank->contents.count(chunk) == 0) return;  // Freed meanwhile.
  // A part of the rank that waits to write the chunk may have another content for it already.
  if (IsBusy(*rank, chunk)) return Undefine(rank, {chunk});
  rank->contents[chunk] = {stamp};
  // A write fetch that waits gives the rank a content of its own.
  const bool is_written = Waits<FetchCall>(rank->session, [&](const FetchCall& fetch) {
    return fetch.access == Access::kWrite && Names(fetch.chunks, chunk);
  });
  rank->contents[chunk].shared = is_written ? 0 : made;
}

void RankSimulation::TakeResults(Rank* rank, const Held& held) {
  const uint64_t made = next_made_++;
  // A computation that was made twice is of one maker or the other: the oracle knows not which.
  if (!made_.insert({{held.work, held.read}, made}).second) made_[{held.work, held.read}] = 0;
  for (size_t i = 0; i < held.writes.size(); ++i) {
    SetResult(rank, held.writes[i], StepResult(held.read, held.work, i), held.shareable ? made : 0);
  }
}

void RankSimulation::OnRefusal(Rank* rank, const Waiting& waiting, absl::StatusCode code) {
  const auto* const commit = std::get_if<CommitCall>(&waiting.event);
  if (commit != nullptr && commit->with_all_ranks &&
      code == absl::StatusCode::kFailedPrecondition) {
    Hit(ClientProbe::kRefusedWithoutARank);
  }
  const auto* const part = std::get_if<StepCall>(&waiting.event);
  if (part == nullptr) return;
  // A part that never began may have had its results in chunks of its own already.
  for (size_t i = part->reads; i < part->chunks.size(); ++i) {
    const auto content = rank->contents.find(part->chunks[i]);
    if (content != rank->contents.end() && content->second.shared != 0) {
      Undefine(rank, {part->chunks[i]});
    }
  }
}

void RankSimulation::OnOpen(Rank* rank, const OpenReply& reply) {
  const auto left = left_.find(rank->number);
  if (left != left_.end()) {
    Hit(ClientProbe::kTookPlace);
    rank->chunks = left->second.chunks;
    rank->contents = left->second.contents;
    rank->has_shared = left->second.has_shared;
    rank->step = left->second.step;
  }
  if (config_.keeps && reply.committed_step != rank->step) {
    return verdict_.Broken(absl::StrCat("rank ", rank->number, " goes on from step ",
                                        reply.committed_step, ", and has committed ", rank->step));
  }
  rank->step = reply.committed_step;
}

void RankSimulation::OnFetch(Rank* rank, const FetchCall& call, const FetchReply& reply) {
  if (!config_.hostile) return ClientSimulation::OnFetch(rank, call, reply);
  if (reply.leases.size() != call.chunks.size()) {
    return verdict_.Broken(absl::StrCat("leased another number: ", ToText(Event(call))));
  }
  for (size_t i = 0; i < reply.leases.size(); ++i) {
    const ChunkId chunk = call.chunks[i];
    if (rank->contents.count(chunk) != 0) rank->leases[chunk] = reply.leases[i];
  }
}

void RankSimulation::OnPart(Rank* rank, const Waiting& waiting, const PartReply& reply) {
  if (!reply.unknown_reads.empty()) return Hit(ClientProbe::kDigestsAsked);
  if (reply.difference.has_value()) Hit(ClientProbe::kDiffers);
  const bool has_waited = outcome_.events != waiting.since;
  if (!reply.made) {
    if (has_waited) Hit(ClientProbe::kMadeAnew);
    return ClientSimulation::OnPart(rank, waiting, reply);
  }
  Hit(ClientProbe::kMade);
  if (has_waited) Hit(ClientProbe::kWaited);
  for (auto& [id, other] : clients_) other.has_shared = true;
  const StepCall& call = std::get<StepCall>(waiting.event);
  const auto made = made_.find({WorkOf(call), waiting.read});
  if (made == made_.end() && !config_.hostile) {
    return verdict_.Broken(absl::StrCat("no rank has computed it: ", ToText(Event(call))));
  }
  for (size_t i = call.reads; i < call.chunks.size(); ++i) {
    SetResult(rank, call.chunks[i], StepResult(waiting.read, WorkOf(call), i - call.reads),
              made == made_.end() ? 0 : made->second);
  }
}

void RankSimulation::OnCommit(Rank* rank, const CommitCall& call) {
  Hit(ClientProbe::kCommitted);
  if (call.with_all_ranks) committed_with_all_.insert(rank->session);
  if (config_.hostile) return;
  committed_now_.insert(rank->session);
  ClientSimulation::OnCommit(rank, call);
  if (!verdict_.ok()) return;
  for (const ChunkId id : call.chunks) {
    const Content& chunk = rank->contents.at(id);
    if (chunk.shared != 0) committed_contents_[{chunk.shared, chunk.stamp}] = rank->step;
  }
}

void RankSimulation::After() {
  ClientSimulation::After();
  CheckAllCommitted();
  if (dies_ && !committed_with_all_.empty()) Hit(ClientProbe::kDiedInCommit);
  if (!config_.hostile) CheckCommits();
}

// Commits wait only for ranks that share.
void RankSimulation::CheckIdle() {
  if (config_.hostile || config_.keeps) return;
  bool waits = false, in_the_way = false;
  for (const auto& [id, call] : calls_) {
    waits = waits || std::holds_alternative<CommitCall>(call.event);
  }
  for (const auto& [id, rank] : clients_) {
    in_the_way = in_the_way || (!Waits<CommitCall>(id) && rank.has_shared);
  }
  if (waits && !in_the_way) {
    verdict_.Broken("commits wait, and no rank that shares has yet to commit");
  }
}

// A commit of all ranks is one of all ranks.
void RankSimulation::CheckAllCommitted() {
  if (committed_with_all_.empty()) return;
  Hit(ClientProbe::kAllCommitted);
  if (committed_with_all_.size() != config_.clients) {
    verdict_.Broken(absl::StrCat(committed_with_all_.size(), " ranks have committed with all ",
                                 config_.clients));
  }
}

// A commit that has waited long enough goes on without the ranks that have not called. Commits of
// all ranks, which have waited long enough too, are refused before.
void RankSimulation::NoteWaits() {
  const auto is_late = [this](bool with_all_ranks, Duration patience) {
    return std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
      const auto* const commit = std::get_if<CommitCall>(&entry.second.event);
      return commit != nullptr && commit->with_all_ranks == with_all_ranks &&
             now_ - entry.second.called >= patience;
    });
  };
  const Duration most = config_.limits.max_wait;
  if (!is_late(false, std::min(kPatience, most))) return;
  const bool all_are_refused = is_late(true, most);
  const auto still_waits = [&](const CommitCall& commit) {
    return !commit.with_all_ranks || !all_are_refused;
  };
  for (const auto& [id, rank] : clients_) {
    if (!Waits<CommitCall>(id, still_waits)) in_vain_.insert(id);
  }
}

// A content that several ranks have is committed by all of them in one event, but for those that
// have committed the step before, or for which others have waited in vain.
void RankSimulation::CheckCommits() {
  const auto is_of_all = [](const CommitCall& commit) { return commit.with_all_ranks; };
  if (committed_now_.size() > 1) Hit(ClientProbe::kCommittedTogether);
  for (const auto& [result, step] : committed_contents_) {
    const auto& [made, stamp] = result;
    for (const auto& [id, rank] : clients_) {
      const bool is_no_concern = committed_now_.count(id) + in_vain_.count(id) != 0;
      if (is_no_concern || rank.step >= step || Waits<CommitCall>(id, is_of_all)) continue;
      for (const auto& [chunk, content] : rank.contents) {
        if (content.shared != made || content.stamp != stamp) continue;
        return verdict_.Broken(
            absl::StrCat("session ", id.value(), " shares what others have committed without it"));
      }
    }
  }
}

}  // namespace memtide::sim

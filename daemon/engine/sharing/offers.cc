// Offers: a session names chunks that it will not write, and those whose bytes another session of
// its user has offered, too, come to hold one common content (sharing/hidden_jobs.cc).
//
// Step parts of the daemon hash the chunks, compare them with a content that is there, or copy the
// first of them to where the content is made. A part reads the chunks under pins of its own, and
// what it found counts only if the chunk still has that version, and nothing uses it, at the end.
// The first session that offers some bytes only leaves a digest: its chunks become common when it
// offers them again, after another session has offered the same.
#include "daemon/engine/sharing/offers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace memtide {

namespace {

// Chunks of one step part: few, so that a part needs little room and the first ones end soon.
constexpr uint32_t kMostInPart = 8;

}  // namespace

absl::Status Offers::CheckOffer(const Session& session, const OfferCall& event) const {
  const Job& job = *session.job;
  if (!job.name.empty()) {
    return absl::FailedPreconditionError(
        "only sessions with a job of their own share contents with others of their user; leave out "
        "the job's name");
  }
  if (!job.share(Tier::kHost).exists()) {
    return absl::FailedPreconditionError(
        "contents are shared in host memory, and the job has no share of it");
  }
  if (core_.draining) {
    return absl::UnavailableError("the memtide daemon is draining and shares no more contents");
  }
  MEMTIDE_RETURN_IF_ERROR(CheckDeadline(core_.options.limits, event.deadline));
  const size_t chunks = std::min<size_t>(event.chunks.size(), core_.options.limits.chunks_per_call);
  return calls_.CheckWaiting(session, chunks + 2 * MostInPart(job));
}

uint32_t Offers::MostInPart(const Job& job) {
  return std::min(kMostInPart, job.LeaseLimit(Tier::kHost));
}

void Offers::On(const OfferCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  absl::Status status = CheckOffer(*session, event);
  const absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(*session, event.chunks);
  if (status.ok()) status = indices.status();
  if (event.repeats && session->job != nullptr && session->job->shares_contents()) {
    status = absl::FailedPreconditionError("ranks of one job share what they write by themselves");
  }
  if (!status.ok()) return core_.Refuse(event.call, status);
  if (event.repeats) {
    RepeatOffer(*session, *indices);
    return core_.AnswerWith(event.call, OfferReply());
  }
  auto offer = std::make_shared<Offer>();
  offer->call = event.call;
  offer->session = session->id;
  offer->deadline = event.deadline;
  offer->give_up_at = core_.now + kOfferPatience;
  for (uint32_t i = 0; i < event.chunks.size(); ++i) {
    const Chunk& chunk = core_.chunks[(*indices)[i]];
    if (chunk.common() != nullptr) {
      offer->reply.shared.push_back(i);
      continue;
    }
    if (!IsOfferable(chunk)) continue;
    Offer::Item item;
    item.number = i;
    item.id = event.chunks[i];
    offer->open.push_back(item);
  }
  const uint32_t count = static_cast<uint32_t>(offer->open.size());
  offer->chunks_of_job = session->job->waiting_chunks.Take(count);
  offer->chunks_of_user = session->user->waiting_chunks.Take(count);
  GoOn(offer);
}

// A chunk that was never written has no bytes to share, and one that a step writes will not keep
// its bytes, unless others make the same step.
bool Offers::IsOfferable(const Chunk& chunk) {
  const bool has_content = chunk.has_content() && !chunk.copies().torn && !chunk.blank;
  return has_content && !chunk.transient && (chunk.counterpart == kNoChunk || chunk.is_repeated());
}

void Offers::GoOn(const std::shared_ptr<Offer>& offer) {
  Session& session = *core_.sessions.Find(offer->session);
  if (StartHashing(session, offer) || StartSharing(session, offer)) return;
  if (offer->open.empty() || core_.now >= offer->give_up_at || core_.draining)
    return AnswerOffer(*offer);
  Wait(session, offer);
}

void Offers::Wait(Session& session, const std::shared_ptr<Offer>& offer) {
  offer->of_session = session.waiting_calls.Take();
  offers_.push_back(offer);
}

// False: all digests are known.
bool Offers::StartHashing(Session& session, const std::shared_ptr<Offer>& offer) {
  ContentWork work;
  std::vector<ChunkIndex> chunks;
  std::vector<Offer::Item> later;
  for (Offer::Item& item : offer->open) {
    const absl::optional<ChunkIndex> index = core_.ids.Find(session, item.id);
    if (!index.has_value()) continue;  // It was freed.
    if (core_.chunks[*index].Writer().has_value()) {
      offer->reply.leased.push_back(item.number);
      continue;
    }
    item.version = core_.chunks[*index].version;
    const auto known = session.offered.find(item.id);
    const bool is_known = known != session.offered.end() && known->second.version == item.version;
    if (is_known || chunks.size() >= MostInPart(*session.job)) {
      later.push_back(item);
      continue;
    }
    work.hashes.push_back(static_cast<uint32_t>(chunks.size()));
    chunks.push_back(*index);
    offer->in_part.push_back(item);
  }
  offer->open = std::move(later);
  if (chunks.empty()) return false;
  const size_t reads = chunks.size();
  StartPart(session, offer, std::move(work), std::move(chunks), reads);
  return true;
}

// Starts a part that compares and copies chunks of the offer. False: there are none for it now.
bool Offers::StartSharing(Session& session, const std::shared_ptr<Offer>& offer) {
  CommonContents& contents = CommonsOf(session);
  const uint32_t most = MostInPart(*session.job);
  std::vector<Offer::Item> open, lacking;
  open.swap(offer->open);
  for (Offer::Item& item : open) {
    const ChunkIndex index = *core_.ids.Find(session, item.id);
    const Digest digest = session.offered.at(item.id).digest;
    CommonContent* content = contents.Find(digest);
    if (content == nullptr && !contents.IsOfferedByOthers(digest, session.id)) continue;
    if (!MayBecomeCommon(index)) {
      offer->reply.leased.push_back(item.number);
      continue;
    }
    const bool is_being_made = content != nullptr && !content->whole;
    if (is_being_made || offer->in_part.size() >= most) {
      offer->open.push_back(item);
      continue;
    }
    if (core_.ChunksLeft() == 0) continue;
    item.is_copied = content == nullptr;
    if (content == nullptr) content = MakeContent(session, contents, digest);
    if (content == nullptr) {
      lacking.push_back(item);
      continue;
    }
    item.reader = core_.IdOf(MakeReader(*session.job, index, *content));
    offer->in_part.push_back(item);
  }
  if (!lacking.empty() && !offer->lacks_memory && contents.job != nullptr && MakeMemory(contents)) {
    offer->open.insert(offer->open.end(), lacking.begin(), lacking.end());
  }
  if (offer->in_part.empty()) return false;
  LendRegions(session, contents);
  // The part reads the chunks and the contents that they are compared with, and writes the others.
  std::stable_partition(offer->in_part.begin(), offer->in_part.end(),
                        [](const Offer::Item& item) { return !item.is_copied; });
  ContentWork work;
  std::vector<ChunkIndex> chunks;
  for (const Offer::Item& item : offer->in_part)
    chunks.push_back(*core_.ids.Find(session, item.id));
  size_t first_written = chunks.size();
  for (uint32_t i = 0; i < offer->in_part.size(); ++i) {
    const Offer::Item& item = offer->in_part[i];
    (item.is_copied ? work.copies : work.comparisons)
        .push_back({i, static_cast<uint32_t>(chunks.size())});
    chunks.push_back(IndexOf(*item.reader));
    first_written += !item.is_copied;
  }
  StartPart(session, offer, std::move(work), std::move(chunks), first_written);
  return true;
}

void Offers::StartPart(Session& session, const std::shared_ptr<Offer>& offer, ContentWork work,
                       std::vector<ChunkIndex> chunks, size_t first_written) {
  RunStep run;
  run.contents = std::make_shared<const ContentWork>(std::move(work));
  run.purpose = offer;
  const CallId call = offer->repeats ? CallId(kFirstOwnCall + next_own_call_++) : offer->call;
  calls_.Wait(session, call, std::move(chunks), first_written, std::move(run), offer->deadline);
  Waiter* const waiting = calls_.FindWaiter(call);
  if (!offer->repeats || waiting == nullptr || waiting->admitted) return;
  std::vector<Offer::Item> items = offer->in_part;
  items.insert(items.end(), offer->open.begin(), offer->open.end());
  const PartFailed failed = calls_.Cancel(*waiting, absl::UnavailableError("there is no room now"));
  LeavePart(*std::get<std::shared_ptr<Offer>>(failed.purpose));
  PutOff(session, items);
}

void Offers::EndOffer(Offer& offer, const absl::Status& why) {
  DropReaders(offer);
  offer.repeats ? EndOwnOffer(offer.session) : core_.Refuse(offer.call, why);
}

void Offers::LeavePart(Offer& offer) {
  DropReaders(offer);
  if (offer.repeats) EndOwnOffer(offer.session);
}

void Offers::EndPart(const std::shared_ptr<Offer>& ended, const StepDone& event) {
  Offer& offer = *ended;
  Session* const session = core_.sessions.Find(offer.session);
  if (!event.status.ok() || session == nullptr || session->job == nullptr) {
    return EndOffer(offer,
                    event.status.ok() ? absl::UnavailableError("the session ended") : event.status);
  }
  if (!offer.in_part.front().reader.has_value()) {
    NoteDigests(*session, offer, event.contents);
  } else {
    EndSharing(*session, offer, event.contents);
  }
  GoOn(ended);
}

void Offers::NoteDigests(Session& session, Offer& offer, const ContentResult& result) {
  CommonContents& contents = CommonsOf(session);
  MEMTIDE_CHECK(result.digests.size() == offer.in_part.size());
  for (size_t i = 0; i < offer.in_part.size(); ++i) {
    const Offer::Item& item = offer.in_part[i];
    if (!core_.ids.Find(session, item.id).has_value()) continue;
    const auto [known, is_new] = session.offered.try_emplace(item.id);
    const Digest& digest = result.digests[i];
    if (!is_new) contents.Withdraw(known->second.digest, session.id, item.id);
    known->second = {item.version, digest};
    contents.Offer(digest, session.id, item.id);
    if (offer.repeats) CountOffer(core_.chunks[*core_.ids.Find(session, item.id)]);
    offer.open.push_back(item);
  }
  offer.in_part.clear();
}

void Offers::EndSharing(Session& session, Offer& offer, const ContentResult& result) {
  size_t compared = 0;
  for (const Offer::Item& item : offer.in_part) {
    const ChunkIndex reader = IndexOf(*item.reader);
    CommonContent& content = *core_.chunks[reader].common();
    if (item.is_copied) {
      content.whole = true;
      OfferAlike(session, content.digest);
    }
    const bool is_equal = item.is_copied || result.are_equal[compared++];
    if (!is_equal) {
      ++core_.counters.digests_collided;
      continue;
    }
    const absl::optional<ChunkIndex> index = core_.ids.Find(session, item.id);
    if (!index.has_value() || core_.chunks[*index].version != item.version) continue;
    if (!MayBecomeCommon(*index)) {
      offer.reply.leased.push_back(item.number);
      continue;
    }
    residency_.BecomeCommon(*index, reader);
    core_.chunks[*index].offers_in_vain = 0;
    offer.reply.shared.push_back(item.number);
    ++core_.counters.contents_shared;
  }
  DropReaders(offer);
}

// The entries that were made for the part go, with what chunks held before they became common.
void Offers::DropReaders(Offer& offer) {
  for (const Offer::Item& item : std::exchange(offer.in_part, {})) {
    if (!item.reader.has_value()) continue;
    if (const auto reader = core_.chunks.Find(*item.reader)) calls_.FreeChunk(*reader);
  }
  offers_due_ = true;
}

void Offers::AnswerOffer(Offer& offer) {
  const Session& session = *core_.sessions.Find(offer.session);
  const Job& job = *session.job;
  const bool shares = !offer.reply.shared.empty();
  if (offer.repeats) {
    EndOwnOffer(offer.session);
  } else {
    std::sort(offer.reply.shared.begin(), offer.reply.shared.end());
    std::sort(offer.reply.leased.begin(), offer.reply.leased.end());
    core_.AnswerWith(offer.call, std::move(offer.reply));
  }
  const Share& host = job.share(Tier::kHost);
  if (shares && job.lease_tier == Tier::kHost) {
    memory_.SendBudget(session.id, host.slots().size(), host.most_slots());
  }
  MaybeEndHiddenJob(CommonsOf(session));
}

std::vector<std::shared_ptr<Offer>> Offers::TakeDue() {
  if (core_.work.TakeMovement() && std::exchange(await_transfers_, false)) offers_due_ = true;
  std::vector<std::shared_ptr<Offer>> due;
  if (!std::exchange(offers_due_, false)) return due;
  size_t looks = 0;
  for (const std::shared_ptr<Offer>& offer : offers_) {
    if (looks >= core_.options.limits.chunks_per_call) break;
    looks += offer->open.size();
    due.push_back(offer);
  }
  return due;
}

void Offers::StopWaiting(Offer& offer) {
  MEMTIDE_CHECK(offers_.front().get() == &offer);
  offer.of_session.End();
  offers_.pop_front();
}

void Offers::EndOffers(Session& session, const absl::Status& why) {
  std::deque<std::shared_ptr<Offer>> others;
  for (const std::shared_ptr<Offer>& offer : std::exchange(offers_, {})) {
    if (offer->session != session.id) {
      others.push_back(offer);
      continue;
    }
    offer->of_session.End();
    offer->EndCounts();
    EndOffer(*offer, why);
  }
  offers_ = std::move(others);
}

void Offers::WithdrawOffer(Session& session, ChunkId id) {
  const auto known = session.offered.find(id);
  if (known == session.offered.end()) return;
  CommonsOf(session).Withdraw(known->second.digest, session.id, id);
  session.offered.erase(known);
}

void Offers::WithdrawOffers(Session& session) {
  if (session.job == nullptr) return;
  const auto found = core_.commons.find({session.uid, session.job->chunk_size});
  if (found == core_.commons.end()) return;
  CommonContents& contents = found->second;
  for (const auto& [id, offered] : std::exchange(session.offered, {})) {
    contents.Withdraw(offered.digest, session.id, id);
  }
  contents.lent_to.erase(session.id);
  if (contents.job != nullptr) contents.job->shares->set_fair_shares(contents.lent_to.size());
  MaybeEndHiddenJob(contents);
}

}  // namespace memtide

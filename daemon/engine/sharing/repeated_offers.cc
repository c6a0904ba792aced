// Repeated offers: chunks that sessions of a user write, each for itself, and in the same way, such
// as the ranks of a data-parallel training on a device each. Whenever such a chunk was written, and
// nothing uses it any more, the engine offers it again of its own accord (sharing/offers.cc), so
// that what has become equal is kept once in host memory. The copies at the devices stay.
//
// An own offer never waits for a lease: a client may hold that while it waits for a chunk of the
// offer. A client keeps leases that it does not use, so each Tick revokes those by which chunks
// were written.
#include <utility>

#include "daemon/engine/sharing/offers.h"

namespace memtide {

namespace {

// Chunks of one own offer: few, as a fetch of one waits until the step part of all of them ends.
constexpr size_t kMostInOwnOffer = 4;

// A chunk that was offered so often, and had nothing in common with another, is offered no more.
constexpr uint8_t kMostInVain = 16;

}  // namespace

// REQUIRES: the session may offer the chunks.
void Offers::RepeatOffer(Session& session, const std::vector<ChunkIndex>& indices) {
  for (const ChunkIndex index : indices) {
    core_.chunks[index].repeats_offer = true;
    OfferLater(session, index);
  }
}

void Offers::OfferLater(Session& session, ChunkIndex index) {
  session.to_offer.insert(core_.ids.IdFor(index, session.id));
  repeats_due_.insert(session.id);
}

void Offers::On(const ChunkUnpinned& signal) {
  const absl::optional<ChunkIndex> index = core_.chunks.Find(signal.chunk);
  if (index.has_value()) OfferAgain(*index);
}

void Offers::OfferAgain(ChunkIndex index) {
  const Chunk& chunk = core_.chunks[index];
  if (!chunk.repeats_offer || chunk.common() != nullptr || !chunk.live()) return;
  // Jobs with repeated offers have one session.
  for (const SessionId id : chunk.job->sessions) OfferLater(*core_.sessions.Find(id), index);
}

void Offers::On(const ContentWritten& signal) {
  Session* const session = core_.sessions.Find(signal.session);
  if (session == nullptr || session->job == nullptr) return;
  if (signal.was_common) WithdrawOffer(*session, signal.chunk);
  const absl::optional<ChunkIndex> index = core_.ids.Find(*session, signal.chunk);
  if (index.has_value() && core_.chunks[*index].repeats_offer) {
    session->to_revoke.insert(signal.chunk);
  }
}

void Offers::RevokeForOffers(Session& session) {
  Revoke revoke;
  revoke.session = session.id;
  for (const ChunkId id : std::exchange(session.to_revoke, {})) {
    const absl::optional<ChunkIndex> index = core_.ids.Find(session, id);
    if (!index.has_value()) continue;
    const Pin* const pin = core_.chunks[*index].uses().FindPin(session.id);
    if (pin == nullptr || !pin->granted()) {
      session.to_offer.insert(id);
      continue;
    }
    revoke.chunks.push_back(id);
    if (revoke.chunks.size() < kMaxRevokedChunks) continue;
    ++core_.counters.revokes;
    core_.Emit(std::exchange(revoke, Revoke{session.id, 0, {}}));
  }
  if (revoke.chunks.empty()) return;
  ++core_.counters.revokes;
  core_.Emit(std::move(revoke));
}

void Offers::Tick() {
  offers_due_ = !offers_.empty();
  std::vector<SessionId> holders;
  for (const auto& [id, session] : core_.sessions) {
    if (!session.to_revoke.empty()) holders.push_back(id);
  }
  for (const SessionId id : holders) RevokeForOffers(*core_.sessions.Find(id));
  for (const auto& [id, session] : core_.sessions) {
    if (!session.to_offer.empty()) repeats_due_.insert(id);
  }
}

bool Offers::StartOwnOffers() {
  if (repeats_due_.empty()) return false;
  for (const SessionId id : std::exchange(repeats_due_, {})) {
    Session* const session = core_.sessions.Find(id);
    const bool may_offer = session != nullptr && session->job != nullptr && !core_.draining;
    if (may_offer && !session->own_offer_runs) StartOwnOffer(*session);
  }
  return true;
}

// Whether another session has offered what the chunk had when it was last offered, or the chunk has
// changed since.
bool Offers::IsWorthOffering(const Session& session, ChunkId id, const Chunk& chunk) {
  const auto known = session.offered.find(id);
  if (known == session.offered.end() || known->second.version != chunk.version) return true;
  CommonContents& contents = CommonsOf(session);
  const Digest& digest = known->second.digest;
  return contents.Find(digest) != nullptr || contents.IsOfferedByOthers(digest, session.id);
}

void Offers::StartOwnOffer(Session& session) {
  // The next Tick tries again.
  if (!calls_.CheckWaiting(session, kMostInOwnOffer + 2 * MostInPart(*session.job)).ok()) return;
  auto offer = std::make_shared<Offer>();
  offer->repeats = true;
  offer->session = session.id;
  offer->give_up_at = core_.now + kOfferPatience;
  while (!session.to_offer.empty() && offer->open.size() < kMostInOwnOffer) {
    Offer::Item item;
    item.id = *session.to_offer.begin();
    session.to_offer.erase(session.to_offer.begin());
    const absl::optional<ChunkIndex> index = core_.ids.Find(session, item.id);
    if (!index.has_value() || !core_.chunks[*index].repeats_offer) continue;
    const Chunk& chunk = core_.chunks[*index];
    if (!IsOfferable(chunk) || !IsWorthOffering(session, item.id, chunk)) continue;
    if (MayBecomeCommon(*index)) {
      offer->open.push_back(item);
    } else if (chunk.common() == nullptr) {
      session.to_revoke.insert(item.id);  // It is offered when what uses it has ended.
    }
  }
  if (offer->open.empty()) return;
  session.own_offer_runs = true;
  const uint32_t count = static_cast<uint32_t>(offer->open.size());
  offer->chunks_of_job = session.job->waiting_chunks.Take(count);
  offer->chunks_of_user = session.user->waiting_chunks.Take(count);
  GoOn(offer);
}

void Offers::CountOffer(Chunk& chunk) {
  if (++chunk.offers_in_vain >= kMostInVain) chunk.repeats_offer = false;
}

// The part of an own offer was not admitted, so that its chunks are offered again after a Tick.
void Offers::PutOff(Session& session, const std::vector<Offer::Item>& items) {
  for (const Offer::Item& item : items) session.to_offer.insert(item.id);
  repeats_due_.erase(session.id);
}

void Offers::EndOwnOffer(SessionId id) {
  Session* const session = core_.sessions.Find(id);
  if (session == nullptr) return;
  session->own_offer_runs = false;
  if (!session->to_offer.empty()) repeats_due_.insert(id);
}

// A session offers what others have offered, too, or a content is whole that has the digest.
void Offers::OfferAlike(const Session& session, const Digest& digest) {
  const CommonContents::Offers* const offers = CommonsOf(session).OffersOf(digest);
  if (offers == nullptr) return;
  for (const auto& [id, chunks] : *offers) {
    if (id == session.id) continue;
    Session& other = *core_.sessions.Find(id);
    for (const ChunkId chunk : chunks) {
      const absl::optional<ChunkIndex> index = core_.ids.Find(other, chunk);
      if (index.has_value() && core_.chunks[*index].repeats_offer) OfferLater(other, *index);
    }
  }
}

}  // namespace memtide

// FrozenScript: a session of a test with a few chunks that it offers to the others of its user,
// which have the same, or come to write the same.
#ifndef MEMTIDE_DAEMON_ENGINE_TESTING_FROZEN_SCRIPT_H_
#define MEMTIDE_DAEMON_ENGINE_TESTING_FROZEN_SCRIPT_H_

#include <cstdint>
#include <numeric>
#include <vector>

#include "daemon/engine/testing/engine_byte_harness.h"

namespace memtide {

inline constexpr size_t kElements = 1000;
inline constexpr uint32_t kUid = 1000, kOtherUid = 1001;

inline std::vector<float> Values(float first) {
  std::vector<float> values(kElements);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// A session with a few frozen chunks. Two of them with one `first` are alike.
class FrozenScript {
 public:
  FrozenScript(EngineByteHarness* node, uint32_t count, float first, uint32_t uid = kUid)
      : node_(node) {
    OpenReply opened;
    session_ = node->OpenRank("", Duration(0), 0, 0, &opened, uid);
    chunks_ = node->Allocate(session_, count);
    for (uint32_t i = 0; i < count; ++i) {
      node->Fill(session_, chunks_[i], Values(first + static_cast<float>(i)));
    }
  }

  SessionId session() const { return session_; }
  const std::vector<ChunkId>& chunks() const { return chunks_; }
  CallId Ask() {
    const OfferCall offer{node_->Call(), session_, chunks_};
    node_->Post(offer);
    return offer.call;
  }
  void OfferWhenWritten() {
    OfferCall offer{node_->Call(), session_, chunks_};
    offer.repeats = true;
    node_->Post(offer);
    node_->Finish<OfferReply>(offer.call);
  }
  OfferReply Answer(CallId call) { return node_->Finish<OfferReply>(call); }
  OfferReply Offer() { return Answer(Ask()); }
  std::vector<float> Read(size_t i) { return node_->Read(session_, chunks_[i], kElements); }
  void Fill(size_t i, float first) { node_->Fill(session_, chunks_[i], Values(first)); }
  void Dies() { node_->Post(ClientGone{session_}); }

 private:
  EngineByteHarness* const node_;
  SessionId session_;
  std::vector<ChunkId> chunks_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TESTING_FROZEN_SCRIPT_H_

// FrozenScript: a session of a test with a few chunks that it offers to the others of its user,
// which have the same, or come to write the same.
#ifndef MEMTIDE_DAEMON_ENGINE_TESTING_FROZEN_SCRIPT_H_
#define MEMTIDE_DAEMON_ENGINE_TESTING_FROZEN_SCRIPT_H_

#include <cstdint>
#include <cstring>
#include <numeric>
#include <variant>
#include <vector>

#include "daemon/engine/testing/engine_byte_harness.h"

namespace memtide {

inline constexpr size_t kFrozenElements = 1000;
inline constexpr uint32_t kUid = 1000, kOtherUid = 1001;

inline std::vector<float> FrozenValues(float first) {
  std::vector<float> values(kFrozenElements);
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
      node->Fill(session_, chunks_[i], FrozenValues(first + static_cast<float>(i)));
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
  std::vector<float> Read(size_t i) { return node_->Read(session_, chunks_[i], kFrozenElements); }
  void Fill(size_t i, float first) { node_->Fill(session_, chunks_[i], FrozenValues(first)); }
  void Dies() { node_->Post(ClientGone{session_}); }

 private:
  EngineByteHarness* const node_;
  SessionId session_;
  std::vector<ChunkId> chunks_;
};

// Two of them, with `count` chunks that are alike, which lease at one device, four chunks each.
class TwoScriptsAtADeviceTest : public testing::Test {
 protected:
  static constexpr uint32_t kSsdSlots = 32;

  explicit TwoScriptsAtADeviceTest(uint32_t count) : a_(Node(), count, 1), b_(Node(), count, 1) {}

  MemoryPlace Lease(const FrozenScript& script, size_t i, Access access) {
    const Reply reply = node_.Fetch(script.session(), script.chunks()[i], Tier::kDevice, access);
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    return std::get<FetchReply>(reply.value).leases.at(0).place;
  }
  std::vector<float> At(const MemoryPlace& place) {
    std::vector<float> values(kFrozenElements);
    std::memcpy(values.data(), node_.At(place), kFrozenElements * sizeof(float));
    return values;
  }
  void Write(const FrozenScript& script, size_t i, float first) {
    const std::vector<float> values = FrozenValues(first);
    char* const bytes = node_.At(Lease(script, i, Access::kWrite));
    std::memcpy(bytes, values.data(), kFrozenElements * sizeof(float));
  }

  // The device has room for the scripts of a test beside these.
  EngineByteHarness node_{{{EngineByteHarness::kChunk * 16},
                           EngineByteHarness::kChunk * 96,
                           EngineByteHarness::kChunk* kSsdSlots,
                           Limits()}};
  FrozenScript a_, b_;

 private:
  EngineByteHarness* Node() {
    node_.elastic_ = true;
    node_.device_share_ = EngineByteHarness::kChunk * 4;
    return &node_;
  }
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TESTING_FROZEN_SCRIPT_H_

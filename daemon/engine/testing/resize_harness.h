// ResizeHarness: an EngineHarness whose device lends its memory slot by slot, with clients that
// return it.
#ifndef MEMTIDE_DAEMON_ENGINE_TESTING_RESIZE_HARNESS_H_
#define MEMTIDE_DAEMON_ENGINE_TESTING_RESIZE_HARNESS_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/testing/engine_harness.h"

namespace memtide {

inline EngineOptions SlotRegions() {
  EngineOptions options{{kChunk * 12}, kChunk * 16, kChunk * 64, Limits()};
  options.device_kinds = {MemoryKind::kCudaDescriptor, MemoryKind::kCudaIpc};
  return options;
}

// A node whose GPU has 12 slots. OpenEight() opens a job with 8 of them.
class ResizeHarness : public EngineHarness {
 public:
  explicit ResizeHarness(const EngineOptions& options = SlotRegions()) : EngineHarness(options) {}

  SessionId OpenEight(const std::string& job = "", Duration time_to_live = Duration(0)) {
    OpenCall open;
    open.job_name = job;
    open.device_share = kChunk * 8;
    open.time_to_live = time_to_live;
    return OpenAs(open);
  }
  CallId Resize(SessionId session, uint64_t slots, Duration deadline = Duration(0)) {
    const ResizeCall resize{Call(), session, kChunk * slots, deadline};
    Post(resize);
    return resize.call;
  }
  ResizeReply Resized(CallId call) {
    const auto* reply = std::get_if<ResizeReply>(&ReplyTo(call).value);
    EXPECT_NE(reply, nullptr) << ReplyTo(call).status;
    return reply == nullptr ? ResizeReply() : *reply;
  }
  CallId Return(SessionId session, std::vector<RegionId> regions) {
    const ReturnRegionsCall call{Call(), session, std::move(regions)};
    Post(call);
    return call.call;
  }
  // The session returns all regions that it got SendRegionGone for since the last time.
  void ReturnAll(SessionId session) {
    std::vector<RegionId> regions;
    for (size_t& next = returned_[session]; next < gone_.size(); ++next) {
      if (gone_[next].session == session) regions.push_back(gone_[next].region);
    }
    Return(session, regions);
  }
  // Eight chunks at the device, none leased.
  std::vector<ChunkId> Fill(SessionId session, uint32_t count = 8) {
    const std::vector<ChunkId> chunks = Allocate(session, count);
    for (const ChunkId chunk : chunks) Touch(session, chunk, Access::kWrite);
    return chunks;
  }
  PoolUsage Device() { return Inspect().pools[0]; }
  void ExpectEmpty() {
    for (const PoolUsage& pool : Inspect().pools) EXPECT_EQ(pool.free, pool.capacity);
  }

 private:
  std::map<SessionId, size_t> returned_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TESTING_RESIZE_HARNESS_H_

#include "client/default_chunk_size.h"

#include <algorithm>

namespace memtide::client {
namespace {

// Of the tier where chunks are leased: enough to choose victims from. In host memory beside a
// device optimizers are stepped, a dozen chunks at a time.
constexpr uint64_t kChunksOnDevice = 12, kChunksInHost = 24;
constexpr Bytes kMinChunk = MiB(2);
constexpr Bytes kMaxChunk = MiB(64);

}  // namespace

Bytes DefaultChunkSize(const JobOptions& options, const v1::InspectNodeResponse& node) {
  Bytes device, host;
  for (const v1::Pool& pool : node.pools()) {
    // What is being scrubbed is free soon, and Open waits for it.
    const Bytes free(std::max(pool.free_bytes(), pool.obtainable_bytes()) + pool.scrubbing_bytes());
    if (pool.tier() == v1::TIER_DEVICE) device = free;
    if (pool.tier() == v1::TIER_HOST) host = free;
  }
  if (!device.IsZero() && !options.device_share.IsZero()) device = options.device_share;
  if (!host.IsZero() && !options.host_share.IsZero()) host = options.host_share;
  Bytes wanted = kMaxChunk;
  if (!device.IsZero()) wanted = std::min(wanted, Bytes(device / Bytes(kChunksOnDevice)));
  if (!host.IsZero()) wanted = std::min(wanted, Bytes(host / Bytes(kChunksInHost)));
  return std::max(RoundDown(wanted, kMinChunk), kMinChunk);
}

}  // namespace memtide::client

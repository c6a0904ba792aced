#include "client/rpc/default_chunk_size.h"

#include <algorithm>

#include "proto/protocol.h"

namespace memtide::client {
namespace {

// The number of chunks that must fit into each tier. With 12 on the device, eviction has a choice
// of victims. Host memory needs 24, because an optimizer step uses a dozen chunks of it at a time.
constexpr uint64_t kChunksOnDevice = 12, kChunksInHost = 24;
// Copies to a GPU are as fast with half of it, but each chunk there is mapped and leased
// (docs/decisions/0011).
constexpr Bytes kMaxChunk = MiB(64), kMaxChunkOnDevice = MiB(128);

// Whether the device share may come from this device.
bool MayLend(const v1::Pool& device, const v1::OpenRequest& request) {
  switch (request.device_case()) {
    case v1::OpenRequest::kDeviceNumber:
      return device.device_number() == request.device_number();
    case v1::OpenRequest::kCudaDeviceUuid:
      return device.cuda_device_uuid() == request.cuda_device_uuid();
    case v1::OpenRequest::DEVICE_NOT_SET:
      break;
  }
  return true;
}

}  // namespace

Bytes DefaultChunkSize(Bytes device_share, Bytes host_share) {
  Bytes wanted = kMaxChunk;
  if (!device_share.IsZero()) {
    wanted = std::min(kMaxChunkOnDevice, Bytes(device_share / Bytes(kChunksOnDevice)));
  }
  if (!host_share.IsZero()) wanted = std::min(wanted, Bytes(host_share / Bytes(kChunksInHost)));
  // The daemon accepts only multiples of kChunkAlignment, and refuses a pool that is too small for
  // them.
  wanted = std::max(RoundDown(wanted, kChunkAlignment), kChunkAlignment);
  // A small host share must not cut GPU memory into more regions than the daemon lends.
  while (device_share / wanted > kMaxDeviceRegions) wanted += kChunkAlignment;
  return wanted;
}

Bytes DefaultChunkSize(const v1::OpenRequest& request, const v1::InspectNodeResponse& node) {
  Bytes device, host;
  for (const v1::Pool& pool : node.pools()) {
    // A quota of the user may permit less than the free memory. Memory that is being scrubbed
    // counts as free: Open waits until it is.
    const uint64_t obtainable =
        pool.obtainable_bytes() != 0 ? pool.obtainable_bytes() : pool.free_bytes();
    const Bytes free(obtainable + pool.scrubbing_bytes());
    // Where the request names none, the emptiest device lends.
    if (pool.tier() == v1::TIER_DEVICE && MayLend(pool, request)) device = std::max(device, free);
    if (pool.tier() == v1::TIER_HOST) host = free;
  }
  const Bytes device_share(request.device_share_bytes()), host_share(request.host_share_bytes());
  // A requested share of a pool that the node lacks does not count.
  if (!device.IsZero() && !device_share.IsZero()) device = device_share;
  if (!host.IsZero() && !host_share.IsZero()) host = host_share;
  return DefaultChunkSize(device, host);
}

}  // namespace memtide::client

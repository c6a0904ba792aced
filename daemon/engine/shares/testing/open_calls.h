// Calls that open a job, for tests of the ledger.
#ifndef MEMTIDE_DAEMON_ENGINE_SHARES_TESTING_OPEN_CALLS_H_
#define MEMTIDE_DAEMON_ENGINE_SHARES_TESTING_OPEN_CALLS_H_

#include <cstdint>

#include "daemon/engine/interface/events.h"

namespace memtide {

inline constexpr Bytes kChunk = MiB(2);

// Opens a job whose shares have these numbers of chunks.
inline OpenCall Fixed(uint64_t device_chunks, uint64_t host_chunks, uint64_t ssd_chunks) {
  OpenCall open;
  open.chunk_size = kChunk;
  open.device_share = kChunk * device_chunks;
  open.host_share = kChunk * host_chunks;
  open.ssd_share = kChunk * ssd_chunks;
  return open;
}

// Opens a job with four chunks of a device and elastic shares of the rest.
inline OpenCall Elastic() {
  OpenCall open = Fixed(4, 0, 0);
  open.elastic = true;
  return open;
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_SHARES_TESTING_OPEN_CALLS_H_
